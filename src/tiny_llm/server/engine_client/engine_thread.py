"""The engine's thread: it loads the model, steps it, and reports what each step did.

Everything that touches the model happens here. MLX's streams belong to a thread, so loading and
computing share one. The thread takes messages between steps; a request that is cancelled is gone
before the next step is planned.

Grammars do not touch the model. Worker threads compile them, so that a slow one holds up no step.

When there is nothing to do, it computes what the next turns of conversations will begin with, a
page a step, and looks for messages after each. Before it waits, it gives back memory that many
requests have left free.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from ...engine.inputs.structured_outputs import ToolCalls
from ...engine.llm import LLM
from ...engine.scheduling.events import Event, event_fields
from ...engine.scheduling.outputs import RequestMetrics, StreamOutput
from ...engine.scheduling.snapshot import SNAPSHOT_INTERVAL, snapshot
from ...errors import UserError
from ...models import memory
from . import messages

log = logging.getLogger("tiny_llm.server")

NUM_GRAMMAR_WORKERS = 2  # that compile grammars
MAX_WARMUP_PREFIXES = 4  # prompts that are computed before they are asked for


@dataclass(frozen=True)
class GrammarReady:
    """The grammar of a request is compiled, or refused for a reason; a worker's message."""

    request: messages.AddRequest
    reject_reason: str | None


CommandQueue = queue.SimpleQueue[messages.EngineCommand | GrammarReady]


class EngineThread(threading.Thread):
    """Runs an engine.

    Args:
        load: makes the engine; called in this thread.
        command_queue: messages for it.
        report: takes its messages; called in this thread, and must not block.

    Attributes:
        step_started_at: when the current step began, on the clock of `time.monotonic`; None between
            steps. The watchdog reads it.
    """

    def __init__(
        self,
        load: Callable[[], LLM],
        command_queue: CommandQueue,
        report: Callable[[messages.EngineMessage], None],
    ):
        super().__init__(name="engine", daemon=True)
        self.step_started_at: float | None = None
        self._load = load
        self._command_queue = command_queue
        self._report = report
        self._workers = ThreadPoolExecutor(NUM_GRAMMAR_WORKERS, thread_name_prefix="grammars")
        self._compiling: set[str] = set()  # requests whose grammars are being compiled
        self._events: list[dict[str, Any]] = []
        self._snapshot_requested = False
        self._next_snapshot = 0.0  # when the next one is due, while the engine is watched
        self._num_logprobs: dict[tuple[str, int], int] = {}  # that were reported, by answer
        self._num_submitted = 0  # since free memory was given back
        # What may be asked for next, the newest last; the oldest is given up.
        self._warmup_prefixes: deque[tuple[int, ...]] = deque(maxlen=MAX_WARMUP_PREFIXES)

    def run(self) -> None:
        """Loads and steps until `Shutdown`; reports `EngineDead` on any other exit."""
        try:
            llm = self._load()
            llm.on_worker_lost(self._on_worker_lost)
            self._report(_engine_ready(llm))
            self._run_loop(llm)
        except UserError as error:  # the model cannot be loaded
            self._report(messages.EngineDead(str(error)))
        except BaseException as error:
            log.exception("the engine's thread ends")
            self._report(messages.EngineDead(f"the engine failed: {type(error).__name__}."))

    def _on_worker_lost(self, sentence: str) -> None:
        """Reports the end in the thread that has noticed it, which ends the process next."""
        self._report(messages.EngineDead(sentence))
        time.sleep(messages.SHUTDOWN_GRACE_SECONDS)

    def _run_loop(self, llm: LLM) -> None:
        self._report(messages.StepReport((), _engine_stats(llm)))
        while True:
            updates: list[
                messages.RequestAccepted | messages.RequestRejected | messages.OutputDelta
            ] = []
            has_work = llm.has_unfinished_requests or bool(self._warmup_prefixes)
            if not has_work:
                self._trim_memory(llm)
            for message in self._drain_commands(wait=not has_work):
                self._num_submitted += isinstance(message, messages.AddRequest)
                match message:
                    case messages.AddRequest(request_id) if (
                        message.params.structured_outputs is not None
                    ):
                        self._compiling.add(request_id)
                        self._workers.submit(self._compile_grammar, llm, message)
                    case messages.AddRequest():
                        updates.append(_add_request(llm, message))
                    case GrammarReady(request, reject_reason):
                        updates += self._on_grammar_ready(llm, request, reject_reason)
                    case messages.AbortRequest(request_id) if request_id in self._compiling:
                        self._compiling.remove(request_id)
                        updates.append(messages.RequestRejected(request_id, "It was cancelled."))
                    case messages.AbortRequest(request_id):
                        llm.abort(request_id)
                    case messages.Precompute(token_ids):
                        self._warmup_prefixes.append(token_ids)
                    case messages.EnableEvents(enabled):
                        llm.scheduler.listener = self._on_event if enabled else None
                        self._next_snapshot = 0.0
                    case messages.SnapshotRequest():
                        self._snapshot_requested = True
                    case messages.Shutdown():
                        return
            self.step_started_at = time.monotonic()
            if llm.has_unfinished_requests:
                updates += map(self._output_delta, llm.step())
            elif self._warmup_prefixes and not llm.precompute(self._warmup_prefixes[-1]):
                self._warmup_prefixes.pop()
            self.step_started_at = None
            events, self._events = tuple(self._events), []
            self._report(
                messages.StepReport(tuple(updates), _engine_stats(llm), events, self._snapshot(llm))
            )

    def _snapshot(self, llm: LLM) -> dict[str, Any] | None:
        """A snapshot, if somebody looks, or watches and the last one is old or work has ended."""
        now = time.monotonic()
        is_due = now >= self._next_snapshot or not llm.has_unfinished_requests
        if not self._snapshot_requested and not (is_due and llm.scheduler.listener is not None):
            return None
        self._snapshot_requested = False
        self._next_snapshot = now + SNAPSHOT_INTERVAL
        return {**snapshot(llm.scheduler), "time": time.time()}

    def _compile_grammar(self, llm: LLM, request: messages.AddRequest) -> None:
        """Compiles a request's grammar; called by a worker.

        Calls that the model may make, but need not, do without one that cannot be compiled.
        """
        ids, thinking_enabled = request.token_ids, request.thinking_enabled
        constraint = request.params.structured_outputs
        reject_reason = None
        try:
            llm.compile_grammar(ids, request.params, enable_thinking=thinking_enabled)
        except UserError as error:
            if isinstance(constraint, ToolCalls) and constraint.choice == "auto":
                log.warning("tool calls are not kept to their schemas: %s", error)
                params = replace(request.params, structured_outputs=None)
                request = replace(request, params=params)
            else:
                reject_reason = str(error)
        except Exception:  # it is told to the client of this request, and to the log
            log.exception("a grammar was not compiled")
            reject_reason = "The form of the answer could not be compiled."
        self._command_queue.put(GrammarReady(request, reject_reason))

    def _on_grammar_ready(
        self, llm: LLM, request: messages.AddRequest, reject_reason: str | None
    ) -> list[messages.RequestAccepted | messages.RequestRejected]:
        """Adds a request whose grammar is ready, unless it was cancelled meanwhile."""
        if request.request_id not in self._compiling:
            return []
        self._compiling.remove(request.request_id)
        if reject_reason is not None:
            return [messages.RequestRejected(request.request_id, reject_reason)]
        return [_add_request(llm, request)]

    def _trim_memory(self, llm: LLM) -> None:
        """Gives memory back, after so many requests that there may be some."""
        if self._num_submitted >= memory.TRIM_INTERVAL and self._command_queue.empty():
            self._num_submitted = 0
            llm.release_scratch()
            memory.trim_heap()

    def _drain_commands(self, wait: bool) -> Iterator[messages.EngineCommand | GrammarReady]:
        """All messages that are there; with `wait`, at least one."""
        if wait:
            yield self._command_queue.get()
        while True:
            try:
                yield self._command_queue.get_nowait()
            except queue.Empty:
                return

    def _on_event(self, event: Event) -> None:
        self._events.append({**event_fields(event), "time": time.time()})

    def _output_delta(self, output: StreamOutput) -> messages.OutputDelta:
        whole = output.request_output
        answer = whole.outputs[output.index]
        key = (output.request_id, output.index)
        logprobs = None
        if answer.logprobs is not None:
            first = self._num_logprobs.get(key, 0)
            logprobs = tuple(answer.logprobs[first:])
            self._num_logprobs[key] = len(answer.logprobs)
        if output.finish_reason is not None:
            self._num_logprobs.pop(key, None)
        if whole.error is not None and output.finish_reason == "error":
            log.error("request %s: %s", output.request_id, whole.error)
        ended = output.finish_reason is not None and whole.finished
        scored = None
        is_first = bool(output.token_ids) and len(output.token_ids) == len(answer.token_ids)
        if whole.prompt_logprobs is not None and output.index == 0 and is_first:
            scored = tuple(whole.prompt_logprobs)
        return messages.OutputDelta(
            output.request_id,
            output.index,
            output.text,
            output.token_ids,
            logprobs,
            whole.num_cached_tokens,
            output.finish_reason,
            answer.stop_reason,
            _finished_stats(whole.metrics, len(answer.token_ids)) if ended else None,
            scored,
            is_first,
        )


def _add_request(
    llm: LLM, message: messages.AddRequest
) -> messages.RequestAccepted | messages.RequestRejected:
    """Adds a request, or says why not."""
    ids, request_id = list(message.token_ids), message.request_id
    try:
        llm.add_request(
            ids, message.params, request_id=request_id, enable_thinking=message.thinking_enabled
        )
    except UserError as error:
        return messages.RequestRejected(message.request_id, str(error))
    return messages.RequestAccepted(message.request_id)


def _max_seq_len(llm: LLM) -> int:
    """Tokens that a request may have. The last of an answer needs no place in a page."""
    config = llm.scheduler.config
    return min(config.max_seq_len, config.num_pages * config.page_size + 1)


def _engine_ready(llm: LLM) -> messages.EngineReady:
    config = llm.scheduler.config
    return messages.EngineReady(
        llm.vocab_size, _max_seq_len(llm), config.max_num_seqs, llm.describe()
    )


def _finished_stats(metrics: RequestMetrics, tokens: int) -> messages.FinishedRequestStats:
    assert metrics.finished_time is not None
    total = metrics.finished_time - metrics.arrival_time
    return messages.FinishedRequestStats(metrics.queue_seconds, metrics.ttft, total, tokens)


def _engine_stats(llm: LLM) -> messages.EngineStats:
    scheduler, statistics = llm.scheduler, llm.runner.statistics
    return messages.EngineStats(
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        pages=scheduler.config.num_pages,
        free_pages=scheduler.pages.num_available,
        prompt_tokens=scheduler.num_prompt_tokens,
        cached_tokens=scheduler.num_cached_tokens,
        preemptions=scheduler.num_preemptions,
        steps=statistics.steps,
        draft_tokens=statistics.num_draft_tokens,
        accepted_draft_tokens=statistics.num_accepted_tokens,
    )
