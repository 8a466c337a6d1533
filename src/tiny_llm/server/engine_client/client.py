"""Event-loop client of the engine: admission, output dispatch, abort.

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
from ...engine.structured_output.grammar import GRAMMAR_FAILED
from ..http.errors import ApiError, bad_request, current_record
from ..settings import Settings
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
    LoadFailed,
    LoadModel,
    ModelUnloaded,
    Precompute,
    RequestAccepted,
    RequestRejected,
    RequestUpdate,
    SnapshotRequest,
    StepReport,
    UnloadModel,
)
from .metrics import Metrics, add_totals
from .output_queue import Coalescer, OutputQueue, coalescing_delay

ENGINE_FAILED = "The engine failed during generation; see the server's log."


class RequestHandle:
    """A client's request to the engine. `close` must always be called, even after a failure.

    Attributes:
        request_ids: ids of the engine requests, one per prompt.
        prompt_index: index of the prompt, by request id.
        prompt_tokens: total number of prompt tokens.
        constraint: constraint on the output, or None.
        lora: name of the LoRA adapter, or None.
        output_tokens: number of generated tokens so far.
        first_output_at: `time.monotonic()` at the first output; None until then.
        on_slow_reader: callback for a client that reads too slowly, or None.
        queue: outputs awaiting delivery.
    """

    def __init__(
        self,
        engine_client: "EngineClient",
        request_ids: Sequence[str],
        prompt_lengths: Sequence[int],
        params: SamplingParams,
        lora: str | None = None,
    ):
        self.request_ids = list(request_ids)
        self.prompt_index = {request_id: index for index, request_id in enumerate(request_ids)}
        self.prompt_tokens = sum(prompt_lengths)
        self.output_tokens = 0
        self.first_output_at: float | None = None
        self.on_slow_reader: Callable[[], None] | None = None
        settings = engine_client.settings
        self.constraint = params.structured_outputs
        self.lora = lora
        self._num_completions = len(self.request_ids) * params.n
        self._timeout = settings.request_timeout
        limit = settings.max_queued_outputs * self._num_completions
        schedule_wake = engine_client.coalescer.schedule_wake
        self.queue = OutputQueue(limit, settings.slow_reader_timeout, schedule_wake)
        self._cached = dict.fromkeys(self.request_ids, 0)
        self._engine_client = engine_client
        self._unaccepted = set(self.request_ids)  # not yet in the engine's queue
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def model_name(self) -> str:
        """Name of the model or adapter in responses."""
        return self.lora or self._engine_client.model_name

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

    def handle_update(self, update: RequestUpdate) -> None:
        """Processes an update from the engine."""
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
                if self.on_slow_reader is not None and self.queue.is_stalled:
                    self.on_slow_reader()

    def fail(self, error: ApiError) -> None:
        """Ends the request with an error, before or during generation."""
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


class EngineClient:
    """Sends requests to the engine thread and dispatches its messages.

    Args:
        settings: server settings.
        command_queue: the engine thread's input queue.
        lifecycle: the model's lifecycle.
        metrics: counters and histograms.
        on_dead: called when the engine thread has failed.

    Attributes:
        settings, command_queue, lifecycle, metrics: as given.
        model_name: the model's name in responses.
        coalescer: delivers the engine thread's messages to `handle_message`.
        engine_info: the engine's limits and configuration; None while the model is not loaded.
        load_error: why the last load failed; None if it succeeded.
        snapshot: latest scheduler snapshot (`engine/scheduling/snapshot.py`); None until one
            arrives.
        in_flight: requests with output still to be computed or delivered.
        shutting_down: set when the process shuts down, to end the event streams of
            `/engine/events`.
    """

    def __init__(
        self,
        settings: Settings,
        command_queue: CommandQueue,
        lifecycle: Lifecycle,
        metrics: Metrics,
        on_dead: Callable[[], None],
    ):
        self.settings = settings
        self.model_name = settings.model_name
        self.lifecycle = lifecycle
        self.metrics = metrics
        self.command_queue = command_queue
        self.engine_info: EngineReady | None = None
        self.snapshot: Mapping[str, Any] | None = None
        self.in_flight: set[RequestHandle] = set()
        self.shutting_down = asyncio.Event()
        self.load_error: str | None = None
        self._on_dead = on_dead
        self._stats = EngineStats()  # as of the last step
        self._earlier = EngineStats()  # totals from earlier loads of the model
        self._load_changed = asyncio.Event()  # set on load, unload or failure
        self.coalescer = Coalescer(
            self.handle_message, lambda: coalescing_delay(len(self.in_flight))
        )
        self._idle = asyncio.Event()
        self._idle.set()
        self._handles: dict[str, RequestHandle | None] = {}  # by request id; None once closed
        self._unfinished: dict[str, int] = {}  # number of unfinished completions, by request id
        self._request_counter = itertools.count()
        self._subscribers: list[Callable[[StepReport], None]] = []
        self._snapshot_waiters: list[asyncio.Future[None]] = []

    # ---------------------------------------------------------------- requests

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        thinking_enabled: bool,
        lora: str | None = None,
    ) -> RequestHandle:
        """Queues prompts in the engine; see `AddRequest`. The engine validates the token ids.

        Raises:
            ApiError: 503 if the server is not ready, 429 if the queue is full, 400 if a prompt
                leaves no room for output or the request alone exceeds the queue's capacity.
        """
        self.check_ready()
        assert self.engine_info is not None
        for prompt in prompts:
            self.check_prompt_length(len(prompt))
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
        deadline = None if timeout is None else current_record().started_at + timeout
        ids = [f"{next(self._request_counter)}" for _ in prompts]
        handle = RequestHandle(self, ids, [len(prompt) for prompt in prompts], params, lora)
        self.in_flight.add(handle)
        self._idle.clear()
        for request_id, prompt in zip(ids, prompts, strict=True):
            self._handles[request_id] = handle
            self._unfinished[request_id] = params.n
            request = AddRequest(request_id, prompt, params, thinking_enabled, deadline, lora)
            self.command_queue.put(request)
        return handle

    def check_ready(self) -> None:
        """Rejects requests while the server is not ready.

        Raises:
            ApiError: 503, with the reason.
        """
        if self.lifecycle.phase is not Phase.READY:
            raise ApiError(503, self.lifecycle.reason, headers={"Retry-After": "1"})

    def abort(self, handle: RequestHandle) -> None:
        """Aborts a request's unfinished completions.

        Their ids stay in `_handles` and `_unfinished` until the engine has ended them: until then,
        they count against the queue's capacity.
        """
        # [task 5.1.4 abort]
        self.in_flight.discard(handle)
        for request_id in handle.request_ids:
            if request_id in self._handles:
                self._handles[request_id] = None
                self.command_queue.put(AbortRequest(request_id))
        self._update_idle()
        # [/task 5.1.4 abort]

    def precompute(self, token_ids: Sequence[int], lora: str | None = None) -> None:
        """Precomputes a likely prompt prefix while the engine is idle."""
        self.command_queue.put(Precompute(token_ids, lora))

    # ---------------------------------------------------------------- observers

    def subscribe(self, callback: Callable[[StepReport], None]) -> None:
        """Calls `callback` with each step report; enables engine events in the reports."""
        self._subscribers.append(callback)
        self.command_queue.put(EnableEvents(True))

    def unsubscribe(self, callback: Callable[[StepReport], None]) -> None:
        """Removes a subscriber."""
        self._subscribers.remove(callback)
        if not self._subscribers:
            self.command_queue.put(EnableEvents(False))

    def report_phase(self) -> None:
        """Sends subscribers an empty report after a phase change."""
        for callback in list(self._subscribers):
            callback(StepReport((), self.stats))

    async def refresh_snapshot(self, seconds: float) -> None:
        """Requests a new `snapshot`, which replaces the old one if it arrives within `seconds`."""
        if self.engine_info is None or self.lifecycle.phase is Phase.FAILED:
            return
        updated: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._snapshot_waiters.append(updated)
        self.command_queue.put(SnapshotRequest())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(updated, seconds)

    # ---------------------------------------------------------------- load

    @property
    def max_seq_len(self) -> int:
        """Maximum number of tokens in a prompt plus its completion."""
        assert self.engine_info is not None
        return self.engine_info.max_seq_len

    @property
    def stats(self) -> EngineStats:
        """Engine gauges as of the last step, and totals across all loads of the model."""
        return add_totals(self._stats, self._earlier)

    @property
    def num_unfinished(self) -> int:
        """Number of completions that the engine has not finished."""
        return sum(self._unfinished.values())

    @property
    def is_idle(self) -> bool:
        """Whether the model is ready and has no unfinished completions."""
        return self.lifecycle.phase is Phase.READY and not self._unfinished

    async def load(self) -> None:
        """Loads the model; sets `engine_info`, or `load_error` if loading fails."""
        self.load_error = None
        self.lifecycle.transition(Phase.LOADING)
        await self._change(LoadModel())

    async def unload(self) -> None:
        """Releases the model's memory. There must be no requests in flight."""
        await self._change(UnloadModel())

    async def _change(self, command: LoadModel | UnloadModel) -> None:
        self._load_changed.clear()
        self.command_queue.put(command)
        await self._load_changed.wait()

    async def wait_until_idle(self, seconds: float | None) -> None:
        """Waits, for at most `seconds`, until all requests have finished and been closed."""
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
                if self._subscribers:
                    self.command_queue.put(EnableEvents(True))
                self._load_changed.set()
            case LoadFailed(reason):
                self.load_error = reason
            case ModelUnloaded():
                self.engine_info = self.snapshot = None
                self._earlier, self._stats = self.stats, EngineStats()
                self.lifecycle.transition(Phase.UNLOADED)
                self.report_phase()
                self._load_changed.set()
            case StepReport():
                self._stats = message.stats
                for update in message.updates:
                    self._dispatch(update)
                if message.snapshot is not None:
                    self._on_snapshot(message.snapshot)
                for callback in list(self._subscribers):
                    callback(message)
            case EngineDead(reason):
                self.on_engine_dead(reason)
                self._on_dead()

    def on_engine_dead(self, reason: str) -> None:
        """Fails every request, because the engine will run no more steps."""
        self.lifecycle.transition(Phase.FAILED, reason)
        self._load_changed.set()
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

    def _dispatch(self, update: RequestUpdate) -> None:
        request_id = update.request_id
        if request_id not in self._handles:  # `on_engine_dead` has removed it
            return
        handle = self._handles[request_id]
        if isinstance(update, StreamOutput):
            self.metrics.observe_output(self.model_name, update)
            if update.finish_reason is not None:
                self._unfinished[request_id] -= 1
        elif isinstance(update, RequestRejected):
            self._unfinished[request_id] = 0
        if not self._unfinished[request_id]:
            del self._handles[request_id], self._unfinished[request_id]
            self._update_idle()
        if handle is not None:
            handle.handle_update(update)

    def check_prompt_length(self, num_tokens: int) -> None:
        """Rejects a prompt that is empty or leaves no room for output in the context.

        Raises:
            ApiError: 400.
        """
        assert self.engine_info is not None
        max_seq_len = self.engine_info.max_seq_len
        if num_tokens == 0:
            raise bad_request("The prompt is empty; it must contain at least one token.")
        if num_tokens >= max_seq_len:
            raise ApiError(
                400,
                # OpenAI and Anthropic clients match this text, then shorten the prompt.
                f"The prompt is too long: {num_tokens} tokens > {max_seq_len - 1} maximum; this "
                f"model's maximum context length is {max_seq_len} tokens, at least one of them for "
                "the output.",
                code="context_length_exceeded",
                details={
                    "n_prompt_tokens": num_tokens,
                    "n_ctx": max_seq_len,
                },  # field names of llama.cpp's server
            )
