"""Event-loop client of the engine: admission, output dispatch, abort.

All methods run on the event loop.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...engine.inputs.sampling_params import SamplingParams
from ...engine.scheduling.outputs import StreamOutput
from ..http.errors import ApiError, bad_request, context_length_error, current_record
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
    RequestRejected,
    RequestUpdate,
    SnapshotRequest,
    StepReport,
    UnloadModel,
)
from .metrics import Metrics, add_totals
from .output_queue import Coalescer, coalescing_delay
from .request_handle import ENGINE_FAILED, RequestHandle

# Log-probabilities of prompt tokens per request; this many take 0.15 s to convert and encode.
MAX_PROMPT_LOGPROBS = 2**16


class EngineClient:
    """Sends requests to the engine thread and dispatches its messages.

    Attributes:
        engine_info: the engine's limits and configuration; None while the model is not loaded.
        load_error: why the last load failed; None if it succeeded.
        snapshot: latest scheduler state (`engine/scheduling/snapshot.py`); None until it arrives.
        in_flight: requests with output still to be computed or delivered.
        is_shutting_down: whether the `/engine/events` streams must end.
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
        self.is_shutting_down = False
        self.load_error: str | None = None
        self._on_dead = on_dead
        self._stats = EngineStats()  # as of the last step; totals of the current load
        self._earlier = EngineStats()  # totals from earlier loads of the model
        self._load_changed = asyncio.Event()  # set on load, unload or failure
        self.coalescer = Coalescer(
            self.handle_message, lambda: coalescing_delay(len(self.in_flight))
        )
        self._idle = asyncio.Event()
        self._idle.set()
        # Keyed by request id; None for a closed request.
        self._handles: dict[str, RequestHandle | None] = {}
        self._unfinished: dict[str, int] = {}  # number of unfinished completions, by request id
        self._request_counter = itertools.count()
        self._subscribers: list[Callable[[StepReport], None]] = []
        self._snapshot_arrived = asyncio.Event()

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        thinking_enabled: bool,
        lora: str | None = None,
    ) -> RequestHandle:
        """Queues prompts in the engine, which validates the token ids.

        Raises:
            ApiError: 503 if the server is not ready, 429 if the queue is full, 400 if a prompt
                is empty or leaves no room for output, or if the request alone exceeds the queue's
                capacity or `MAX_PROMPT_LOGPROBS`.
        """
        self.check_ready()
        assert self.engine_info is not None
        for prompt in prompts:
            self.check_prompt_length(len(prompt))
        if params.prompt_logprobs is not None:
            _check_prompt_logprobs(sum(map(len, prompts)) * params.n, params.prompt_logprobs + 1)
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
        handle = RequestHandle(
            ids, prompts, params, lora, self.settings, self.coalescer.schedule_wake, self.abort
        )
        self.in_flight.add(handle)
        self._idle.clear()
        for request_id, prompt in zip(ids, prompts, strict=True):
            self._handles[request_id] = handle
            self._unfinished[request_id] = params.n
            request = AddRequest(request_id, prompt, params, thinking_enabled, deadline, lora)
            self.command_queue.put(request)
        return handle

    def check_ready(self) -> None:
        """Raises an `ApiError` (503) with the reason unless the model is ready."""
        if self.lifecycle.phase is not Phase.READY:
            raise ApiError(503, self.lifecycle.reason, headers={"Retry-After": "1"})

    def abort(self, handle: RequestHandle) -> None:
        """Aborts a request's unfinished completions.

        Their ids stay in `_handles` and `_unfinished` until the engine has ended them, because they
        count against the queue's capacity until then.
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
        self.command_queue.put(Precompute(token_ids, lora))

    def subscribe(self, callback: Callable[[StepReport], None]) -> None:
        """Calls `callback` with each step report; enables events in the reports."""
        self._subscribers.append(callback)
        self.command_queue.put(EnableEvents(True))

    def unsubscribe(self, callback: Callable[[StepReport], None]) -> None:
        self._subscribers.remove(callback)
        if not self._subscribers:
            self.command_queue.put(EnableEvents(False))

    def report_phase(self) -> None:
        """Sends subscribers a report without updates, after a phase change."""
        for callback in list(self._subscribers):
            callback(StepReport((), self.stats))

    def shut_down(self) -> None:
        """Ends the `/engine/events` streams, because the process shuts down."""
        self.is_shutting_down = True
        self.report_phase()

    async def refresh_snapshot(self, seconds: float) -> None:
        if self.engine_info is None or self.lifecycle.phase is Phase.FAILED:
            return
        self._snapshot_arrived.clear()
        self.command_queue.put(SnapshotRequest())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._snapshot_arrived.wait(), seconds)

    @property
    def max_seq_len(self) -> int:
        """Maximum number of tokens in a prompt plus its completion."""
        assert self.engine_info is not None
        return self.engine_info.max_seq_len

    @property
    def stats(self) -> EngineStats:
        """Engine gauges as of the last step; totals across all loads of the model."""
        return add_totals(self._stats, self._earlier)

    @property
    def num_unfinished(self) -> int:
        """Number of completions that the engine has not finished."""
        return sum(self._unfinished.values())

    @property
    def is_idle(self) -> bool:
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
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)

    def _update_idle(self) -> None:
        if not self.in_flight and not self._unfinished:
            self._idle.set()

    def handle_message(self, message: EngineMessage) -> None:
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
                    self.snapshot = message.snapshot
                    self._snapshot_arrived.set()
                for callback in list(self._subscribers):
                    callback(message)
            case EngineDead(reason):
                self.on_engine_dead(reason)
                self._on_dead()

    def on_engine_dead(self, reason: str) -> None:
        self.lifecycle.transition(Phase.FAILED, reason)
        self._load_changed.set()
        self._handles.clear()
        self._unfinished.clear()
        self.fail_all(ApiError(500, ENGINE_FAILED))
        self._update_idle()

    def fail_all(self, error: ApiError) -> None:
        """Ends all in-flight requests with `error`; each endpoint then closes its own."""
        for handle in list(self.in_flight):
            handle.fail(error)

    def _dispatch(self, update: RequestUpdate) -> None:
        request_id = update.request_id
        if request_id not in self._handles:  # `on_engine_dead` has removed the request
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
        if num_tokens == 0:
            raise bad_request("The prompt is empty; it must contain at least one token.")
        if num_tokens >= self.max_seq_len:
            raise context_length_error(num_tokens, self.max_seq_len)


def _check_prompt_logprobs(num_tokens: int, per_token: int) -> None:
    if num_tokens * per_token > MAX_PROMPT_LOGPROBS:
        raise bad_request(
            f"The prompts have {num_tokens} tokens with {per_token} log-probabilities each; a "
            f"request may have {MAX_PROMPT_LOGPROBS} log-probabilities of prompt tokens. Send "
            "fewer prompts, or request fewer alternatives.",
            "prompt_logprobs",
        )
