"""RequestHandle: a client's request to the engine, and its outputs awaiting delivery.

A request has one or more prompts with `n` completions each. All methods run on the event loop.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

from ...engine.inputs.sampling_params import SamplingParams
from ...engine.scheduling.outputs import StreamOutput
from ...engine.structured_output.grammar import GRAMMAR_FAILED
from ..http.errors import ApiError, bad_request
from ..settings import Settings
from .messages import RequestAccepted, RequestRejected, RequestUpdate
from .output_queue import OutputQueue, WakeCallback

ENGINE_FAILED = "The engine failed during generation; see the server's log."


class RequestHandle:
    """A client's request; `close` must always be called, even after a failure.

    Attributes:
        request_ids: ids of the engine requests, one per prompt.
        model_name: name of the model or adapter in responses.
        first_output_at: `time.monotonic()` at the first output; None until then.
    """

    def __init__(
        self,
        request_ids: Sequence[str],
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        lora: str | None,
        settings: Settings,
        schedule_wake: Callable[[WakeCallback], None],
        abort: Callable[["RequestHandle"], None],
    ):
        self.request_ids = list(request_ids)
        self.prompt_index = {request_id: index for index, request_id in enumerate(request_ids)}
        self.prompt_tokens = sum(map(len, prompts))
        self.output_tokens = 0
        self.first_output_at: float | None = None
        self.model_name = lora or settings.model_name
        self.constraint = params.structured_outputs
        self.lora = lora
        self._num_completions = len(self.request_ids) * params.n
        self._timeout = settings.request_timeout
        self.queue = OutputQueue(settings.max_queued_outputs * self._num_completions, schedule_wake)
        self._cached = dict.fromkeys(self.request_ids, 0)
        self._abort = abort
        self._unaccepted = set(self.request_ids)  # not yet in the engine's queue
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def cached_tokens(self) -> int:
        return sum(self._cached.values())

    async def accepted(self) -> None:
        """Waits until all prompts are queued; raises an `ApiError` if one is rejected."""
        await self._accepted

    async def stream_outputs(self) -> AsyncIterator[list[StreamOutput]]:
        """Yields outputs in batches, until every completion has ended.

        Raises:
            ApiError: a completion failed or timed out; earlier outputs have been yielded.
        """
        num_unfinished = self._num_completions
        while num_unfinished:
            outputs: list[StreamOutput] = []
            error = None
            for item in await self.queue.get():
                error = item if isinstance(item, ApiError) else self._failure(item)
                if error is not None:
                    break
                assert isinstance(item, StreamOutput)
                self._cached[item.request_id] = item.num_cached_tokens
                num_unfinished -= item.finish_reason is not None
                outputs.append(item)
            if outputs:
                yield outputs
            if error is not None:
                raise error

    def close(self) -> None:
        self._abort(self)

    def handle_update(self, update: RequestUpdate) -> None:
        match update:
            case RequestAccepted(request_id):
                self._unaccepted.discard(request_id)
                if not self._unaccepted and not self._accepted.done():
                    self._accepted.set_result(None)
            case RequestRejected(_, reason):
                self.fail(bad_request(reason))
            case StreamOutput():
                self.output_tokens += len(update.token_ids)
                self.first_output_at = self.first_output_at or time.monotonic()
                self.queue.put(update)

    def fail(self, error: ApiError) -> None:
        if not self._accepted.done():
            self._accepted.set_exception(error)
            self._accepted.exception()  # marks it as retrieved: `accepted` may never be awaited
        self.queue.put(error)

    def _failure(self, output: StreamOutput) -> ApiError | None:
        match output.finish_reason:
            case "error":
                reason = output.request_output.error or ""
                if reason.startswith(GRAMMAR_FAILED):  # caused by the request's grammar
                    return bad_request(reason[0].upper() + reason[1:])
                return ApiError(500, ENGINE_FAILED)
            case "timeout":
                message = f"The request did not finish within {self._timeout:g} s."
                return ApiError(504, message, code="timeout")
        return None
