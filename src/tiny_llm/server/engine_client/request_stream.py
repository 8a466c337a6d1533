"""RequestStream: a client's request, and its outputs awaiting delivery.

The engine never blocks on a reader. When a stream's queue is full, new output is merged into the
last queued output of the same completion: nothing is lost and the length stays bounded.

Event loop only.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from ...engine.scheduling.outputs import StreamOutput
from ..http.errors import ApiError
from .coalescer import WakeCallback


class RequestStream:
    """Outputs of a request: one or more prompts with `n` completions each.

    `close` must always be called, even after a failure. There is one reader.

    Args:
        request_ids: ids of the engine requests, one per prompt.
        model_name: name of the model or adapter in responses.
        prompt_tokens: number of tokens in all prompts.
        limit: maximum number of queued outputs per completion; beyond it, outputs are merged.
        schedule_wake: `Coalescer.schedule_wake`, for outputs that are not urgent.
        abort: aborts unfinished completions.

    Attributes:
        prompt_index: index of the prompt, by engine request id.
        first_output_at: `time.monotonic()` at the first output; None until then.
        on_finished: called once when the reader has received all outputs without an error.
    """

    def __init__(
        self,
        request_ids: Sequence[str],
        n: int,
        limit: int,
        schedule_wake: Callable[[WakeCallback], None],
        abort: Callable[["RequestStream"], None] = lambda stream: None,
        model_name: str = "",
        prompt_tokens: int = 0,
    ):
        self.request_ids = list(request_ids)
        self.prompt_index = {request_id: index for index, request_id in enumerate(request_ids)}
        self.model_name = model_name
        self.prompt_tokens = prompt_tokens
        self.output_tokens = 0
        self.first_output_at: float | None = None
        self.on_finished: Callable[[], None] = lambda: None
        self._num_unfinished = len(self.request_ids) * n
        self._cached = dict.fromkeys(self.request_ids, 0)
        self._limit = limit * self._num_unfinished
        self._items: deque[StreamOutput | ApiError] = deque()
        self._wake_later = schedule_wake
        self._wake_scheduled = False  # whether a delayed wake is pending
        self._waiter: asyncio.Future[None] | None = None  # not None while the reader waits
        self._abort = abort

    @property
    def cached_tokens(self) -> int:
        return sum(self._cached.values())

    def put(self, item: StreamOutput | ApiError) -> None:
        """Adds an output, or the error that ends the request. Never blocks.

        If the queue is full, the output is merged into its completion's last queued output, if any.
        """
        if isinstance(item, StreamOutput):
            self.output_tokens += len(item.token_ids)
            self.first_output_at = self.first_output_at or time.monotonic()
        # [task 5.2.1 put]
        if isinstance(item, StreamOutput) and len(self._items) >= self._limit and self._merge(item):
            return
        self._items.append(item)
        # [/task 5.2.1 put]
        if self._waiter is not None:
            self._wake_for(item)

    def _merge(self, new: StreamOutput) -> bool:
        """Merges into the completion's last queued output; False if none is queued."""
        # [task 5.2.1 merge]
        for position in reversed(range(len(self._items))):
            old = self._items[position]
            if isinstance(old, StreamOutput) and _completion(old) == _completion(new):
                self._items[position] = merge_outputs(old, new)
                return True
        return False
        # [/task 5.2.1 merge]

    async def get(self) -> list[StreamOutput | ApiError]:
        """Waits for at least one item, then removes and returns all items."""
        # [task 5.2.2 get]
        if not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        items = list(self._items)
        self._items.clear()
        return items
        # [/task 5.2.2 get]

    async def batches(self) -> AsyncIterator[list[StreamOutput]]:
        """Yields outputs in batches, until every completion has ended.

        Raises:
            ApiError: the request failed or timed out; earlier outputs have been yielded.
        """
        while self._num_unfinished:
            outputs: list[StreamOutput] = []
            error = None
            for item in await self.get():
                if isinstance(item, ApiError):
                    error = item
                    break
                self._cached[item.request_id] = item.num_cached_tokens
                self._num_unfinished -= item.finish_reason is not None
                outputs.append(item)
            if outputs:
                yield outputs
            if error is not None:
                raise error
        self.on_finished()

    def close(self) -> None:
        self._abort(self)

    def _wake_for(self, item: StreamOutput | ApiError) -> None:
        if isinstance(item, ApiError) or item.is_urgent:
            self._wake()
        elif not self._wake_scheduled:
            self._wake_scheduled = True
            self._wake_later(self._wake)

    def _wake(self) -> None:
        self._wake_scheduled = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def merge_outputs(old: StreamOutput, new: StreamOutput) -> StreamOutput:
    """Merges `new` into `old`, an earlier output of the same completion."""
    # [task 5.2.1 outputs]
    return new._replace(
        text=old.text + new.text,
        token_ids=old.token_ids + new.token_ids,
        logprobs=(old.logprobs or ()) + (new.logprobs or ()) or None,
        prompt_logprobs=old.prompt_logprobs or new.prompt_logprobs,
        is_first=old.is_first,
    )
    # [/task 5.2.1 outputs]


def _completion(output: StreamOutput) -> tuple[str, int]:
    return output.request_id, output.index
