"""Delivery of outputs: coalesced wake-ups, and a bounded stream per request.

Waking the event loop and writing to a socket for every token is expensive: a small model's step
takes a few milliseconds, while a display refreshes every 16 ms. Therefore only urgent messages wake
the loop immediately: a completion's first token, its end, an error, and any message after a pause.
All others are delivered together at the next flush. The delay is 2 ms per stream, clamped to
`MIN_DELAY`..`MAX_DELAY`: up to 15 streams together make at most 500 writes per second, and with
more, text still appears smoothly.

The engine never blocks on a reader. When a stream's queue is full, new output is merged into the
last queued output of the same completion: nothing is lost and the length stays bounded.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from ...engine.scheduling.request import StreamOutput
from ..http.errors import ApiError
from .messages import EngineMessage, StepReport

WakeCallback = Callable[[], None]

MIN_DELAY, MAX_DELAY = 0.01, 0.03  # seconds between flushes
DELAY_PER_STREAM = 0.002  # seconds of delay per open stream


def coalescing_delay(num_streams: int) -> float:
    """Maximum delay for coalescing output, in seconds."""
    return min(MAX_DELAY, max(MIN_DELAY, DELAY_PER_STREAM * num_streams))


def is_urgent(report: StepReport) -> bool:
    """Whether a report contains anything besides mid-stream tokens."""
    if report.events or report.snapshot is not None:
        return True
    return any(output.is_urgent for output in report.outputs)


class Coalescer:
    """Delivers the engine thread's messages to the event loop.

    Args:
        handle_message: called on the loop with each message, in order.
        delay: returns the seconds until the next flush.
    """

    def __init__(self, handle_message: Callable[[EngineMessage], None], delay: Callable[[], float]):
        self._handle_message = handle_message
        self._delay = delay
        self._loop: asyncio.AbstractEventLoop | None = None
        self._messages: deque[EngineMessage] = deque()
        self._pending_wakes: list[WakeCallback] = []
        self._next_flush = 0.0  # time of the scheduled flush; in the past if none is scheduled

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def post(self, message: EngineMessage) -> None:
        """Queues a message from the engine thread; wakes the loop if it is urgent."""
        assert self._loop is not None
        # [task 5.2.4 post]
        # Append before the check, so that a concurrent `_flush` delivers the message.
        self._messages.append(message)
        can_wait = isinstance(message, StepReport) and not is_urgent(message)
        if not can_wait or time.monotonic() >= self._next_flush:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process is exiting
                self._loop.call_soon_threadsafe(self._flush)
        # [/task 5.2.4 post]

    def schedule_wake(self, wake: WakeCallback) -> None:
        """Calls `wake` at the end of the next scheduled flush; `wake` must not raise."""
        self._pending_wakes.append(wake)

    def _flush(self) -> None:
        now = time.monotonic()
        is_due = now >= self._next_flush
        has_messages = bool(self._messages)
        while self._messages:
            self._handle_message(self._messages.popleft())
        if not is_due or not (has_messages or self._pending_wakes):
            return  # if not due, a timer is already set
        pending_wakes, self._pending_wakes = self._pending_wakes, []
        for wake in pending_wakes:
            wake()
        assert self._loop is not None
        seconds = self._delay()
        self._next_flush = now + seconds
        self._loop.call_later(seconds + 1e-6, self._flush)


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
