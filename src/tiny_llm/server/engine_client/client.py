"""Event-loop client of the engine: admission, dispatch of outputs, abort.

A client's request is a `RequestHandle`: one or more prompts with `n` completions each. All methods
run on the event loop.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from ...engine.inputs.sampling_params import SamplingParams
from ...engine.scheduling.outputs import StreamOutput
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
    Precompute,
    RequestAccepted,
    RequestRejected,
    SnapshotRequest,
    StepReport,
)
from .metrics import Metrics
from .output_queue import OutputQueue

ENGINE_FAILED = "The engine failed during generation; see the server's log."


class RequestHandle:
    """A client's request in the engine. `close` must be called, on success and on failure.

    Attributes:
        request_ids: engine requests, one per prompt.
        prompt_index: index of each request's prompt.
        prompt_tokens: total number of prompt tokens.
        on_slow_reader: callback for a client that reads too slowly, or None.
        queue: outputs awaiting delivery.
    """

    def __init__(
        self,
        engine_client: "EngineClient",
        request_ids: Sequence[str],
        prompt_lengths: Sequence[int],
        n: int,
    ):
        self.request_ids = list(request_ids)
        self.prompt_index = {request_id: index for index, request_id in enumerate(request_ids)}
        self.prompt_tokens = sum(prompt_lengths)
        self.on_slow_reader: Callable[[], None] | None = None
        settings = engine_client.settings
        self._num_completions = len(self.request_ids) * n
        self._timeout = settings.request_timeout
        limit = settings.max_queued_outputs * self._num_completions
        self.queue = OutputQueue(limit, settings.slow_reader_timeout, engine_client.schedule_wake)
        self._cached = dict.fromkeys(self.request_ids, 0)
        self._engine_client = engine_client
        self._unaccepted = set(self.request_ids)  # not yet in the engine's queue
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens found in the prefix cache."""
        return sum(self._cached.values())

    async def accepted(self) -> None:
        """Waits until every prompt is in the engine's queue.

        Raises:
            ApiError: the engine rejected a prompt.
        """
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
        """Aborts unfinished completions."""
        self._engine_client.abort(self)

    def handle_update(self, update: RequestAccepted | RequestRejected | StreamOutput) -> None:
        """Processes an update from the engine."""
        match update:
            case RequestAccepted(request_id):
                self._unaccepted.discard(request_id)
                if not self._unaccepted and not self._accepted.done():
                    self._accepted.set_result(None)
            case RequestRejected(_, reason):
                self.fail(bad_request(reason))
            case StreamOutput():
                self.queue.put(update)
                if self.on_slow_reader is not None and self.queue.is_stalled:
                    self.on_slow_reader()

    def fail(self, error: ApiError) -> None:
        """Ends the request with an error, before or during generation."""
        if not self._accepted.done():
            self._accepted.set_exception(error)
            self._accepted.exception()  # retrieved: `accepted` may never be awaited
        self.queue.put(error)

    def _failure(self, output: StreamOutput) -> ApiError | None:
        match output.finish_reason:
            case "error":
                return ApiError(500, ENGINE_FAILED)
            case "timeout":
                message = f"The request did not finish within {self._timeout:g} s."
                return ApiError(504, message, code="timeout")
        return None


class EngineClient:
    """Sends requests to the engine thread and dispatches its messages.

    Args:
        settings: limits.
        command_queue: input queue of the engine thread.
        lifecycle: phase of the server.
        metrics: counters and histograms.
        schedule_wake: `Coalescer.schedule_wake`.

    Attributes:
        settings, command_queue, lifecycle, metrics, schedule_wake: as given.
        engine_info: limits and configuration of the engine; None until the model has loaded.
        stats: the engine's state after the last step.
        snapshot: the last requested snapshot (`engine/scheduling/snapshot.py`); None before.
        in_flight: requests with output still to be computed or delivered.
        shutting_down: set when the process exits, which ends the viewers' event streams.
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
        self._load_finished = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._handles: dict[str, RequestHandle | None] = {}  # None: closed by its client
        self._unfinished: dict[str, int] = {}  # completions that the engine has not ended
        self._request_counter = itertools.count()
        self._subscribers: list[Callable[[StepReport], None]] = []
        self._snapshot_waiters: list[asyncio.Future[None]] = []

    # ---------------------------------------------------------------- requests

    def submit(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, thinking_enabled: bool
    ) -> RequestHandle:
        """Queues prompts in the engine; see `AddRequest`. The engine validates the token ids.

        Raises:
            ApiError: 503 if the server is not ready, 429 if the queue is full, 400 if a prompt
                leaves no room in the context or the request alone exceeds the queue.
        """
        self.check_ready()
        assert self.engine_info is not None
        for prompt in prompts:
            self._check_prompt(len(prompt), self.engine_info.max_seq_len)
        num_completions = len(prompts) * params.n
        capacity = self.engine_info.max_num_seqs + self.settings.max_queue
        if num_completions > capacity:
            raise bad_request(
                f"The request needs {num_completions} completions; this server accepts at most "
                f"{capacity} at a time.",
                "n",
            )
        if self.num_unfinished + num_completions > capacity:
            raise ApiError(
                429,
                f"The queue is full: {self.num_unfinished} of {capacity} completions are running "
                "or waiting; retry later.",
                code="rate_limit_exceeded",
                headers={"Retry-After": "1"},
            )
        timeout = self.settings.request_timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        ids = [f"{next(self._request_counter)}" for _ in prompts]
        handle = RequestHandle(self, ids, [len(prompt) for prompt in prompts], params.n)
        self.in_flight.add(handle)
        self._idle.clear()
        for request_id, prompt in zip(ids, prompts, strict=True):
            self._handles[request_id] = handle
            self._unfinished[request_id] = params.n
            request = AddRequest(request_id, prompt, params, thinking_enabled, deadline)
            self.command_queue.put(request)
        return handle

    def check_ready(self) -> None:
        """Rejects requests while the server is not ready.

        Raises:
            ApiError: 503, with the reason.
        """
        if not self.lifecycle.is_ready:
            raise ApiError(503, self.lifecycle.reason, headers={"Retry-After": "1"})

    def abort(self, handle: RequestHandle) -> None:
        """Aborts a request's unfinished completions."""
        self.in_flight.discard(handle)
        for request_id in handle.request_ids:
            if request_id in self._handles:
                self._handles[request_id] = None
                self.command_queue.put(AbortRequest(request_id))
        self._update_idle()

    def precompute(self, token_ids: Sequence[int]) -> None:
        """Computes a likely prompt prefix while the engine is idle."""
        self.command_queue.put(Precompute(token_ids))

    # ---------------------------------------------------------------- observers

    def subscribe(self, callback: Callable[[StepReport], None]) -> None:
        """Calls `callback` with each step report, engine events included."""
        self._subscribers.append(callback)
        self.command_queue.put(EnableEvents(True))

    def unsubscribe(self, callback: Callable[[StepReport], None]) -> None:
        """Removes a subscriber."""
        self._subscribers.remove(callback)
        if not self._subscribers:
            self.command_queue.put(EnableEvents(False))

    async def refresh_snapshot(self, seconds: float) -> None:
        """Updates `snapshot`; keeps the old one if the current step exceeds `seconds`."""
        if self.engine_info is None or self.lifecycle.phase is Phase.BROKEN:
            return
        updated: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._snapshot_waiters.append(updated)
        self.command_queue.put(SnapshotRequest())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(updated, seconds)

    # ---------------------------------------------------------------- load

    @property
    def num_unfinished(self) -> int:
        """Number of completions that the engine has not ended."""
        return sum(self._unfinished.values())

    async def wait_until_loaded(self) -> None:
        """Waits until the engine has loaded, or failed to."""
        await self._load_finished.wait()

    async def wait_until_idle(self, seconds: float) -> None:
        """Waits until every request has ended in the engine and at its client, or a timeout."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)

    def _update_idle(self) -> None:
        if not self.in_flight and not self._unfinished:
            self._idle.set()

    # ---------------------------------------------------------------- messages from the engine

    def handle_message(self, message: EngineMessage) -> None:
        """Processes a message from the engine thread."""
        match message:
            case EngineReady():
                self.engine_info = message
                self._load_finished.set()
            case StepReport():
                self.stats = message.stats
                for update in message.updates:
                    self._dispatch(update)
                if message.snapshot is not None:
                    self._on_snapshot(message.snapshot)
                for callback in list(self._subscribers):
                    callback(message)
            case EngineDead(reason):
                self.on_engine_dead(reason)

    def on_engine_dead(self, reason: str) -> None:
        """Fails every request: the engine computes no more steps."""
        self.lifecycle.transition(Phase.BROKEN, reason)
        self._load_finished.set()
        self._handles.clear()
        self._unfinished.clear()
        self.fail_all(ApiError(500, ENGINE_FAILED))
        self._update_idle()

    def fail_all(self, error: ApiError) -> None:
        """Fails all in-flight requests; their handlers then close them."""
        for handle in list(self.in_flight):
            handle.fail(error)

    def _on_snapshot(self, snapshot: Mapping[str, Any]) -> None:
        self.snapshot = snapshot
        waiters, self._snapshot_waiters = self._snapshot_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _dispatch(self, update: RequestAccepted | RequestRejected | StreamOutput) -> None:
        request_id = update.request_id
        if request_id not in self._handles:  # after `on_engine_dead`
            return
        handle = self._handles[request_id]
        if isinstance(update, StreamOutput):
            self.metrics.observe_output(update)
            if update.finish_reason is not None:
                self._unfinished[request_id] -= 1
        elif isinstance(update, RequestRejected):
            self._unfinished[request_id] = 0
        if not self._unfinished[request_id]:
            del self._handles[request_id], self._unfinished[request_id]
            self._update_idle()
        if handle is not None:
            handle.handle_update(update)

    @staticmethod
    def _check_prompt(num_tokens: int, max_seq_len: int) -> None:
        if num_tokens == 0:
            raise bad_request("The prompt is empty; give at least one token.")
        if num_tokens >= max_seq_len:
            raise ApiError(
                400,
                # Clients of both protocols match this text and then shorten the prompt.
                f"The prompt is too long: {num_tokens} tokens > {max_seq_len - 1} maximum; this "
                f"model's maximum context length is {max_seq_len} tokens, at least one of them for "
                "the output.",
                code="context_length_exceeded",
                details={"n_prompt_tokens": num_tokens, "n_ctx": max_seq_len},  # llama.cpp's names
            )
