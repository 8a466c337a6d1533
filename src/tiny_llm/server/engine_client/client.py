"""The event loop's side of the engine: admission, answers to their clients, and leaving.

A client's request is a `RequestHandle`: one or several prompts, each with one or several answers.
All methods run on the event loop.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from ...engine.inputs.sampling_params import SamplingParams
from ..http.errors import ApiError, bad_request
from ..settings import Settings
from .coalescer import WakeCallback
from .engine_thread import CommandQueue
from .lifecycle import Lifecycle, Phase
from .messages import (
    AbortRequest,
    AddRequest,
    EnableEvents,
    EngineDead,
    EngineMessage,
    EngineReady,
    EngineStats,
    OutputDelta,
    Precompute,
    RequestAccepted,
    RequestRejected,
    SnapshotRequest,
    StepReport,
)
from .metrics import Metrics
from .output_queue import OutputQueue

ENGINE_FAILED = "The engine failed while it computed this answer; the server's log says why."


class RequestHandle:
    """A client's request in the engine. It is ended by `close`, whatever happened before.

    Attributes:
        prompt_tokens: of all prompts together.
        cached_tokens: how many of them were found in the prefix cache.
        on_slow_reader: is called when the client reads too slowly, if somebody wants to know.
    """

    def __init__(
        self,
        engine_client: "EngineClient",
        request_ids: Sequence[str],
        prompts: Sequence[int],
        n: int,
    ):
        self.request_ids = list(request_ids)
        self.prompt_tokens = sum(prompts)
        self.on_slow_reader: Callable[[], None] | None = None
        settings = engine_client.settings
        self._num_choices = len(self.request_ids) * n
        limit = settings.max_queued_outputs * self._num_choices
        self.queue = OutputQueue(limit, settings.slow_reader_timeout, engine_client.schedule_wake)
        self._cached = dict.fromkeys(self.request_ids, 0)
        self._engine_client = engine_client
        self._unaccepted = set(self.request_ids)  # prompts that the engine has not accepted yet
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None
        if settings.request_timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(
                settings.request_timeout, self._expire, settings.request_timeout
            )

    @property
    def cached_tokens(self) -> int:
        """See the class."""
        return sum(self._cached.values())

    async def accepted(self) -> None:
        """Waits until the engine has every prompt in its queue.

        Raises:
            ApiError: it refuses one.
        """
        await self._accepted

    async def stream_outputs(self) -> AsyncIterator[list[tuple[int, OutputDelta]]]:
        """What steps add to the answers, until all have ended: what has come since the last time.

        Each piece comes with the number of its prompt.

        Raises:
            ApiError: an answer cannot be finished; all that came before has been yielded.
        """
        numbers = {request_id: number for number, request_id in enumerate(self.request_ids)}
        remaining = self._num_choices
        while remaining:
            outputs: list[tuple[int, OutputDelta]] = []
            error = None
            for item in await self.queue.get():
                if isinstance(item, ApiError):
                    error = item
                    break
                self._cached[item.request_id] = item.cached_tokens
                if item.finish_reason == "error":
                    error = ApiError(500, ENGINE_FAILED)
                    break
                remaining -= item.finish_reason is not None
                outputs.append((numbers[item.request_id], item))
            if outputs:
                yield outputs
            if error is not None:
                raise error

    def close(self) -> None:
        """Ends it: what the engine still computes for it is cancelled."""
        if self._timer is not None:
            self._timer.cancel()
        self._engine_client.abort(self)

    def handle_update(self, item: RequestAccepted | RequestRejected | OutputDelta) -> None:
        """Takes news from the engine."""
        match item:
            case RequestAccepted(request_id):
                self._unaccepted.discard(request_id)
                if not self._unaccepted and not self._accepted.done():
                    self._accepted.set_result(None)
            case RequestRejected(_, reason):
                self.fail(bad_request(reason))
            case OutputDelta():
                self.queue.put(item)
                if self.on_slow_reader is not None and self.queue.is_stalled:
                    self.on_slow_reader()

    def fail(self, error: ApiError) -> None:
        """Ends it with an error, before its answers began or after."""
        if not self._accepted.done():
            self._accepted.set_exception(error)
            self._accepted.exception()  # it may never be asked for
        self.queue.put(error)

    def _expire(self, seconds: float) -> None:
        self.fail(
            ApiError(504, f"The answer was not finished within {seconds:g} s.", code="timeout")
        )


class EngineClient:
    """Sends requests to the engine's thread, and its news to the clients.

    Args:
        settings: limits.
        command_queue: of the engine's thread.
        lifecycle: whether requests are taken.
        metrics: what is counted.
        schedule_wake: of the pacer: calls a function when it is time to read what is not urgent.

    Attributes:
        settings, lifecycle, metrics, schedule_wake: as given.
        engine_info: what the engine said when it was ready; None before.
        stats: the engine's state after its last step.
        snapshot: the last one of `engine/scheduling/snapshot.py` that somebody looked at; None
            before.
        in_flight: requests whose clients have not got everything.
        shutting_down: is set when the process ends, and viewers must go.
    """

    def __init__(
        self,
        settings: Settings,
        command_queue: CommandQueue,
        lifecycle: Lifecycle,
        metrics: Metrics,
        schedule_wake: Callable[[WakeCallback], None],
    ):
        self.settings = settings
        self.schedule_wake = schedule_wake
        self.lifecycle = lifecycle
        self.metrics = metrics
        self.command_queue = command_queue
        self.engine_info: EngineReady | None = None
        self.stats = EngineStats()
        self.snapshot: Mapping[str, Any] | None = None
        self.in_flight: set[RequestHandle] = set()
        self.shutting_down = asyncio.Event()
        self._handles: dict[str, RequestHandle | None] = {}  # None: its client has gone
        self._unfinished: dict[str, int] = {}  # answers that the engine has not ended
        self._request_counter = itertools.count()
        self._subscribers: list[Callable[[StepReport], None]] = []
        self._snapshot_waiters: list[asyncio.Future[None]] = []

    # ---------------------------------------------------------------- from clients

    def submit(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, thinking_enabled: bool
    ) -> RequestHandle:
        """Asks the engine to answer prompts; see `AddRequest`.

        Raises:
            ApiError: 503 if the server is not ready, 429 if the queue is full, 400 if a prompt
                leaves no room in the context, or the request alone is more than the queue holds.
        """
        self.check_ready()
        assert self.engine_info is not None
        for prompt in prompts:
            self._check_prompt(len(prompt), self.engine_info.max_seq_len)
        answers = len(prompts) * params.n
        room = self.engine_info.max_num_seqs + self.settings.max_queue
        if answers > room:
            raise bad_request(
                f"The request asks for {answers} answers; this server takes at most {room} at a "
                "time.",
                "n",
            )
        if self.num_unfinished + answers > room:
            raise ApiError(
                429,
                f"The queue is full: {self.num_unfinished} answers are running or waiting, and "
                f"the server takes {room}; try again in a moment.",
                code="rate_limit_exceeded",
                headers={"Retry-After": "1"},
            )
        ids = [f"{next(self._request_counter)}" for _ in prompts]
        handle = RequestHandle(self, ids, [len(prompt) for prompt in prompts], params.n)
        self.in_flight.add(handle)
        for request_id, prompt in zip(ids, prompts, strict=True):
            self._handles[request_id] = handle
            self._unfinished[request_id] = params.n
            self.command_queue.put(AddRequest(request_id, tuple(prompt), params, thinking_enabled))
        return handle

    def check_ready(self) -> None:
        """Refuses requests that come too early or too late.

        Raises:
            ApiError: 503, with the reason.
        """
        if not self.lifecycle.is_ready:
            raise ApiError(503, self.lifecycle.reason, headers={"Retry-After": "1"})

    def abort(self, handle: RequestHandle) -> None:
        """A client needs nothing more: what is not finished is cancelled."""
        self.in_flight.discard(handle)
        for request_id in handle.request_ids:
            if request_id in self._handles:
                self._handles[request_id] = None
                self.command_queue.put(AbortRequest(request_id))

    def precompute(self, token_ids: Sequence[int]) -> None:
        """Has the engine compute the beginning of a prompt while there is nothing else to do."""
        self.command_queue.put(Precompute(tuple(token_ids)))

    # ---------------------------------------------------------------- from viewers

    def subscribe(self, callback: Callable[[StepReport], None]) -> None:
        """Calls a function with every report from now on; they contain what the engine does."""
        self._subscribers.append(callback)
        self.command_queue.put(EnableEvents(True))

    def unsubscribe(self, callback: Callable[[StepReport], None]) -> None:
        """Ends it."""
        self._subscribers.remove(callback)
        if not self._subscribers:
            self.command_queue.put(EnableEvents(False))

    async def refresh_snapshot(self, seconds: float) -> None:
        """Renews `snapshot`, unless the engine is in a step that takes longer than `seconds`."""
        if self.engine_info is None or self.lifecycle.phase is Phase.BROKEN:
            return
        seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._snapshot_waiters.append(seen)
        self.command_queue.put(SnapshotRequest())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(seen, seconds)

    # ---------------------------------------------------------------- how much there is to do

    @property
    def num_unfinished(self) -> int:
        """Answers that the engine has not ended."""
        return sum(self._unfinished.values())

    @property
    def is_idle(self) -> bool:
        """Whether every request has ended, for the engine and for its client."""
        return not self.in_flight and not self._unfinished

    # ---------------------------------------------------------------- from the engine

    def handle_message(self, message: EngineMessage) -> None:
        """Takes a message of the engine's thread."""
        match message:
            case EngineReady():
                self.engine_info = message
                self.lifecycle.transition(Phase.READY)
            case StepReport():
                self.stats = message.stats
                for item in message.updates:
                    self._dispatch(item)
                if message.snapshot is not None:
                    self._take_snapshot(message.snapshot)
                for callback in list(self._subscribers):
                    callback(message)
            case EngineDead(reason):
                self.on_engine_dead(reason)

    def on_engine_dead(self, reason: str) -> None:
        """The engine computes nothing any more: every request ends with an error."""
        self.lifecycle.transition(Phase.BROKEN, reason)
        self._handles.clear()
        self._unfinished.clear()
        for handle in list(self.in_flight):
            handle.fail(ApiError(500, ENGINE_FAILED))

    def fail_all(self, error: ApiError) -> None:
        """Ends every request that is open with an error, and cancels it."""
        for handle in list(self.in_flight):
            handle.fail(error)

    def _take_snapshot(self, snapshot: Mapping[str, Any]) -> None:
        self.snapshot = snapshot
        looking, self._snapshot_waiters = self._snapshot_waiters, []
        for seen in looking:
            if not seen.done():
                seen.set_result(None)

    def _dispatch(self, item: RequestAccepted | RequestRejected | OutputDelta) -> None:
        request_id = item.request_id
        if request_id not in self._handles:  # after `on_engine_dead`
            return
        handle = self._handles[request_id]
        if isinstance(item, OutputDelta):
            self.metrics.observe_output(item)
            if item.finish_reason is not None:
                self._unfinished[request_id] -= 1
        elif isinstance(item, RequestRejected):
            self._unfinished[request_id] = 0
        if not self._unfinished[request_id]:
            del self._handles[request_id], self._unfinished[request_id]
        if handle is not None:
            handle.handle_update(item)

    @staticmethod
    def _check_prompt(tokens: int, context: int) -> None:
        if tokens == 0:
            raise bad_request("The prompt is empty; give at least one token.")
        if tokens >= context:
            raise ApiError(
                400,
                # In the words by which clients of both protocols know that they must shorten it.
                f"The prompt is too long: {tokens} tokens > {context - 1} maximum; this model's "
                f"maximum context length is {context} tokens, with at least one for the answer.",
                code="context_length_exceeded",
                details={"n_prompt_tokens": tokens, "n_ctx": context},  # llama.cpp's names
            )
