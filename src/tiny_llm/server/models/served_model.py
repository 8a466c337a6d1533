"""ServedModel: a model's engine thread, phase, admission and requests."""

import asyncio
import contextlib
import itertools
import logging
import queue
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import StrEnum
from typing import Any

from ...engine.inputs.sampling_params import SamplingParams, ToolCalls
from ...engine.scheduling.request import StreamOutput
from ...engine.structured_output.grammar import GRAMMAR_FAILED
from ...errors import UserError, check_token_ids
from ..engine_client import messages
from ..engine_client.engine_thread import CommandQueue, EngineThread
from ..engine_client.messages import AbortRequest, AddRequest, EngineReady, EngineStats, StepReport
from ..engine_client.metrics import Metrics, add_totals
from ..engine_client.request_stream import Coalescer, RequestStream, coalescing_delay
from ..http.errors import (
    ApiError,
    bad_request,
    context_length_error,
    current_record,
    timeout_error,
    user_errors_as_400,
)
from ..protocol.prompts import PromptRenderer
from ..settings import ModelSpec, Settings, default_sampling_params

log = logging.getLogger("tiny_llm.server")

# Log-probabilities of prompt tokens per request; this many take 0.15 s to convert and encode.
MAX_PROMPT_LOGPROBS = 2**16
RETRY_AFTER = {"Retry-After": "1"}
ENGINE_FAILED = "The engine failed during generation; see the server's log."


class Phase(StrEnum):
    """Phase of a model.

    Transitions: loading → ready or unloaded, ready → unloaded, unloaded → loading, any → draining,
    and any → failed, which is final.
    """

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


PHASE_MESSAGES = {
    Phase.UNLOADED: "The model is not loaded; the first request loads it.",
    Phase.LOADING: "The model is loading; retry in a moment.",
    Phase.READY: "The server is ready.",
    Phase.DRAINING: "The server is shutting down and accepts no new requests.",
}


def queue_full_error(message: str) -> ApiError:
    return ApiError(429, message, code="rate_limit_exceeded", headers=RETRY_AFTER)


class ServedModel:
    """A served model; all methods run on the event loop.

    Args:
        on_dead: called if the engine thread fails.

    Attributes:
        defaults: default sampling parameters.
        memory_bytes: memory requirement as of the last load.
        reason: sentence about the phase, for `/ready`.
        engine_info: the engine's limits and configuration; None while the model is not loaded.
        snapshot: latest scheduler state (`engine/scheduling/events.py`); None until it arrives.
        in_flight: requests with output still to be computed or delivered.
        is_shutting_down: whether the `/engine/events` streams must end.
    """

    def __init__(
        self, spec: ModelSpec, settings: Settings, metrics: Metrics, on_dead: Callable[[], None]
    ):
        self.spec = spec
        self.settings = settings
        self.name, self.task = spec.names[0], spec.task
        self.metrics = metrics
        self.created = int(time.time())
        self.defaults = default_sampling_params(spec.folder, settings.generation_config)
        self.memory_bytes = 0
        self.phase = Phase.LOADING if spec.is_pinned else Phase.UNLOADED
        self.reason = PHASE_MESSAGES[self.phase]
        self.engine_info: EngineReady | None = None
        self.snapshot: Mapping[str, Any] | None = None
        self.in_flight: set[RequestStream] = set()
        self.is_shutting_down = False
        self.command_queue: CommandQueue = queue.SimpleQueue()
        self._coalescer = Coalescer(
            self.handle_message, lambda: coalescing_delay(len(self.in_flight))
        )
        self.thread = EngineThread(spec.load, self.command_queue, self._coalescer.post)
        self._on_dead = on_dead
        self._renderer: PromptRenderer | None = None  # while the model is loaded
        self._grammar_workers = ThreadPoolExecutor(2, thread_name_prefix="grammars")
        self._stats = EngineStats()  # as of the last step; totals of the current load
        self._earlier = EngineStats()  # totals from earlier loads of the model
        self._load_error: str | None = None
        self._load_changed = asyncio.Event()  # set on load, unload or failure
        self._idle = asyncio.Event()
        self._idle.set()
        self._streams: dict[str, RequestStream | None] = {}  # by request id; None once closed
        self._unfinished: dict[str, int] = {}  # number of unfinished completions, by request id
        self._request_counter = itertools.count()
        self._subscribers: list[Callable[[StepReport], None]] = []
        self._snapshot_arrived = asyncio.Event()

    # ---------------------------------------------------------------- phase

    def start(self) -> None:
        self._coalescer.start()
        self.thread.start()

    def transition(self, phase: Phase, reason: str | None = None) -> None:
        """Changes the phase; FAILED is final, DRAINING can change only to FAILED."""
        is_final = self.phase is Phase.DRAINING and phase is not Phase.FAILED
        if self.phase is Phase.FAILED or is_final:
            return
        self.phase = phase
        self.reason = reason or PHASE_MESSAGES[phase]

    def check_ready(self) -> None:
        """Raises an `ApiError` (503) with the reason unless the model is ready."""
        if self.phase is not Phase.READY:
            raise ApiError(503, self.reason, headers=RETRY_AFTER)

    @property
    def prompts(self) -> PromptRenderer:
        """The prompt renderer; raises an `ApiError` (503) unless the model is ready."""
        self.check_ready()
        assert self._renderer is not None
        return self._renderer

    @property
    def is_loaded(self) -> bool:
        return self.engine_info is not None

    @property
    def is_idle(self) -> bool:
        return self.phase is Phase.READY and self.is_loaded and not self._unfinished

    @property
    def max_seq_len(self) -> int:
        """Maximum number of tokens in a prompt plus its completion."""
        assert self.engine_info is not None
        return self.engine_info.max_seq_len

    async def load(self) -> str | None:
        """Loads the engine; returns the reason on failure."""
        self._load_error = None
        self.transition(Phase.LOADING)
        await self._change(messages.LoadModel())
        if self._load_error is None and self.engine_info is not None:
            tokenizer = self.engine_info.tokenizer
            self._renderer = PromptRenderer(tokenizer, self.spec.args.tool_call_parser)
            self._renderer.max_tokens = self.max_seq_len
            self.transition(Phase.READY)
            self.report_phase()
        return self._load_error

    async def unload(self) -> None:
        """Releases the model's memory. There must be no requests in flight."""
        self._renderer = self.engine_info = None  # `compile_grammar` refers to the model
        await self._change(messages.UnloadModel())

    async def _change(self, command: messages.LoadModel | messages.UnloadModel) -> None:
        self._load_changed.clear()
        self.command_queue.put(command)
        await self._load_changed.wait()

    # ---------------------------------------------------------------- requests

    async def submit(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        thinking_enabled: bool = False,
        name: str | None = None,
    ) -> RequestStream:
        """Queues prompts in the engine.

        Args:
            name: the model or adapter that the request names; None for the model.

        Raises:
            ApiError: 503 if the model is not ready; 429 if the queue is full; 400 if prompts,
                parameters or the grammar are not valid, or exceed the engine's limits.
        """
        self.check_ready()
        assert self.engine_info is not None
        self._check_request(prompts, params)
        self._check_capacity(len(prompts) * params.n)
        if params.structured_outputs is not None:
            loop, arguments = asyncio.get_running_loop(), (prompts, params, thinking_enabled)
            params = await loop.run_in_executor(
                self._grammar_workers, compile_grammar, self.engine_info, *arguments
            )
            self.check_ready()  # phase and queue may have changed
            self._check_capacity(len(prompts) * params.n)
        timeout, record = self.settings.request_timeout, current_record()
        deadline = None if timeout is None else record.started_at + timeout
        lora = self.adapter_of(name)
        ids = [f"{next(self._request_counter)}" for _ in prompts]
        record.tokens = stream = RequestStream(
            ids,
            params.n,
            self.settings.max_queued_outputs,
            self._coalescer.schedule_wake,
            self.abort,
            self.name_of(name),
            sum(map(len, prompts)),
        )
        self.in_flight.add(stream)
        self._idle.clear()
        for request_id, prompt in zip(ids, prompts, strict=True):
            self._streams[request_id] = stream
            self._unfinished[request_id] = params.n
            request = AddRequest(request_id, prompt, params, thinking_enabled, deadline, lora)
            self.command_queue.put(request)
        return stream

    def check_prompt(self, token_ids: Sequence[int]) -> None:
        """Raises an `ApiError` (400) if a prompt is empty or too long, or has unknown tokens."""
        assert self.engine_info is not None
        if not token_ids:
            raise bad_request("The prompt is empty; it must contain at least one token.")
        if len(token_ids) >= self.max_seq_len:
            raise context_length_error(len(token_ids), self.max_seq_len)
        if max(token_ids) >= self.engine_info.vocab_size:  # faster than a loop
            self.check_token_ids("the prompt", token_ids)

    def check_token_ids(self, what: str, token_ids: Iterable[int]) -> None:
        """Raises an `ApiError` (400) for unknown tokens in `what`, e.g. "the prompt"."""
        assert self.engine_info is not None
        with user_errors_as_400():
            check_token_ids(what, token_ids, self.engine_info.vocab_size)

    def _check_request(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
        for prompt in prompts:
            self.check_prompt(prompt)
        self.check_token_ids("logit_bias", params.logit_bias or ())
        if params.prompt_logprobs is not None:
            num_tokens, per_token = sum(map(len, prompts)) * params.n, params.prompt_logprobs + 1
            if num_tokens * per_token > MAX_PROMPT_LOGPROBS:
                raise bad_request(
                    f"The prompts have {num_tokens} tokens with {per_token} log-probabilities "
                    f"each; a request may have {MAX_PROMPT_LOGPROBS} log-probabilities of prompt "
                    "tokens. Send fewer prompts, or request fewer alternatives.",
                    "prompt_logprobs",
                )

    def _check_capacity(self, num_completions: int) -> None:
        """Checks a request's completions against the engine's slots and queue."""
        assert self.engine_info is not None
        capacity = self.engine_info.max_num_seqs + self.settings.max_queue
        if num_completions > capacity:
            raise bad_request(
                f"The request needs {num_completions} completions; this server accepts at most "
                f"{capacity} at a time.",
                "n",
            )
        if self.num_unfinished + num_completions > capacity:
            raise queue_full_error(
                f"The queue is full: {self.num_unfinished} of {capacity} completions are running "
                "or waiting; retry later."
            )

    def abort(self, stream: RequestStream) -> None:
        """Aborts a request's unfinished completions.

        Their ids stay in `_streams` and `_unfinished` until the engine has ended them, because they
        count against the queue's capacity until then.
        """
        # [task 5.1.4 abort]
        self.in_flight.discard(stream)
        for request_id in stream.request_ids:
            if request_id in self._streams:
                self._streams[request_id] = None
                self.command_queue.put(AbortRequest(request_id))
        self._update_idle()
        # [/task 5.1.4 abort]

    def fail_all(self, error: ApiError) -> None:
        """Fails all in-flight requests; their handlers then close them."""
        for stream in list(self.in_flight):
            stream.put(error)

    @property
    def num_unfinished(self) -> int:
        """Number of completions that the engine has not finished."""
        return sum(self._unfinished.values())

    async def wait_until_idle(self, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)

    def _update_idle(self) -> None:
        if not self.in_flight and not self._unfinished:
            self._idle.set()

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.spec.names, *self.settings.adapter_names)

    def adapter_of(self, name: str | None) -> str | None:
        return name if name in self.settings.adapter_names else None

    def name_of(self, name: str | None) -> str:
        """The name in responses to a request for `name`."""
        return self.adapter_of(name) or self.name

    # ---------------------------------------------------------------- the engine's messages

    def handle_message(self, message: messages.EngineMessage) -> None:
        match message:
            case EngineReady():
                self.engine_info = message
                if self._subscribers:
                    self.command_queue.put(messages.EnableEvents(True))
                self._load_changed.set()
            case messages.LoadFailed(reason):
                self._load_error = reason
            case messages.ModelUnloaded():
                self.engine_info = self.snapshot = None
                self._earlier, self._stats = self.stats, EngineStats()
                self.transition(Phase.UNLOADED)
                self.report_phase()
                self._load_changed.set()
            case StepReport():
                self._stats = message.stats
                for output in message.outputs:
                    self._dispatch(output)
                if message.snapshot is not None:
                    self.snapshot = message.snapshot
                    self._snapshot_arrived.set()
                self._publish(message)
            case messages.EngineDead(reason):
                self.on_engine_dead(reason)
                self._on_dead()

    def on_engine_dead(self, reason: str) -> None:
        self.transition(Phase.FAILED, reason)
        self._load_changed.set()
        self._streams.clear()
        self._unfinished.clear()
        self.fail_all(ApiError(500, ENGINE_FAILED))
        self._update_idle()

    def _dispatch(self, output: StreamOutput) -> None:
        request_id = output.request_id
        if request_id not in self._streams:  # `on_engine_dead` has removed the request
            return
        stream = self._streams[request_id]
        self.metrics.observe_output(self.name, output)
        if output.finish_reason is not None:
            self._unfinished[request_id] -= 1
            if not self._unfinished[request_id]:
                del self._streams[request_id], self._unfinished[request_id]
                self._update_idle()
        if stream is not None:
            stream.put(self._failure(output) or output)

    def _failure(self, output: StreamOutput) -> ApiError | None:
        match output.finish_reason:
            case "error":
                reason = output.error or ""
                if reason.startswith(GRAMMAR_FAILED):  # caused by the request's grammar
                    return bad_request(reason[0].upper() + reason[1:])
                return ApiError(500, ENGINE_FAILED)
            case "timeout":
                return timeout_error(self.settings.request_timeout)
        return None

    # ---------------------------------------------------------------- observation

    @property
    def stats(self) -> EngineStats:
        """Engine gauges as of the last step; totals across all loads of the model."""
        return add_totals(self._stats, self._earlier)

    def subscribe(self, callback: Callable[[StepReport], None]) -> None:
        """Calls `callback` with each step report; enables events in the reports."""
        self._subscribers.append(callback)
        self.command_queue.put(messages.EnableEvents(True))

    def unsubscribe(self, callback: Callable[[StepReport], None]) -> None:
        self._subscribers.remove(callback)
        if not self._subscribers:
            self.command_queue.put(messages.EnableEvents(False))

    def report_phase(self) -> None:
        """Sends subscribers a report without outputs, after a phase change."""
        self._publish(StepReport((), self._stats))

    def _publish(self, report: StepReport) -> None:
        for callback in list(self._subscribers):
            callback(report)

    async def refresh_snapshot(self, seconds: float) -> None:
        if not self.is_loaded or self.phase is Phase.FAILED:
            return
        self._snapshot_arrived.clear()
        self.command_queue.put(messages.SnapshotRequest())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._snapshot_arrived.wait(), seconds)


def compile_grammar(
    engine: EngineReady,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    thinking_enabled: bool,
) -> SamplingParams:
    """Compiles and caches a request's grammar, in a worker thread; returns its parameters.

    With `tool_choice` "auto" and no response constraint, a grammar that cannot be compiled is
    dropped, which leaves tool calls unconstrained. Other constraints raise an `ApiError` (400).
    """
    constraint = params.structured_outputs
    assert engine.compile_grammar is not None
    try:
        for prompt in prompts:
            engine.compile_grammar(prompt, params, enable_thinking=thinking_enabled)
    except UserError as error:
        is_optional = (
            isinstance(constraint, ToolCalls)
            and constraint.choice == "auto"
            and constraint.response_constraint is None
        )
        if not is_optional:
            raise bad_request(str(error)) from error
        log.warning("tool calls are not constrained to their schemas: %s", error)
        return replace(params, structured_outputs=None)
    except Exception as error:
        log.exception("grammar compilation failed")
        reason = "The output constraint could not be compiled; see the server's log."
        raise bad_request(reason) from error
    return params


log = logging.getLogger("tiny_llm.server")
