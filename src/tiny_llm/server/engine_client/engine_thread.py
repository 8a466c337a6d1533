"""Engine thread: loads and unloads a model, runs steps, reports outputs.

All MLX work runs in this thread, because MLX streams are thread-bound. Commands are processed
between steps, so an aborted request is removed before the next step is scheduled.

While idle, the thread precomputes prefixes of likely next turns, one page per step, and polls for
commands after each page. Before blocking, it releases memory that finished requests no longer use.
"""

import gc
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ...engine.core import MEMORY_CHECK_INTERVAL
from ...engine.llm import LLM
from ...engine.scheduling.config import Event
from ...engine.scheduling.events import SNAPSHOT_INTERVAL, snapshot
from ...engine.scheduling.request import StreamOutput
from ...errors import UserError
from ...models import memory
from ...models.parallel.group import on_worker_lost
from . import messages

log = logging.getLogger("tiny_llm.server")

MAX_WARMUP_PREFIXES = 4  # maximum number of pending `Precompute` commands

CommandQueue = queue.SimpleQueue[messages.EngineCommand]


class EngineThread(threading.Thread):
    """Thread that loads an engine and runs its steps.

    Args:
        load: creates the engine; called in this thread.
        report: receives messages for the event loop; called in this thread, must not block.

    Attributes:
        step_started_at: `time.monotonic()` at the start of the current step; None between steps.
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
        self._events: list[dict[str, Any]] = []
        self._snapshot_requested = False
        self._next_snapshot = 0.0  # time at which the next snapshot for subscribers is due
        self._num_submitted = 0  # requests since memory was last trimmed
        # Newest last; when full, the oldest is dropped.
        self._warmup_prefixes: deque[messages.Precompute] = deque(maxlen=MAX_WARMUP_PREFIXES)

    def run(self) -> None:
        """Runs until `Shutdown`; reports `EngineDead` on any other exit."""
        try:
            while not isinstance(command := self._command_queue.get(), messages.Shutdown):
                if isinstance(command, messages.LoadModel):
                    if not self._load_and_serve():
                        return
                    self._release_memory()
        except BaseException as error:
            log.exception("the engine thread failed")
            self._report(messages.EngineDead(f"the engine failed: {type(error).__name__}."))

    def _load_and_serve(self) -> bool:
        """Loads and serves a model; returns False on `Shutdown`, otherwise True."""
        on_worker_lost[:] = [self._on_worker_lost]
        try:
            llm = self._load()
        except UserError as error:
            self._report(messages.LoadFailed(str(error)))
            return True
        except Exception as error:
            log.exception("the model cannot be loaded")
            self._report(messages.LoadFailed(f"the engine failed: {type(error).__name__}."))
            return True
        gc.collect()
        gc.freeze()  # keeps library objects out of later garbage collections
        self._report(_engine_ready(llm))
        is_unloaded = self._run_loop(llm)
        llm.close()
        return is_unloaded

    def _release_memory(self) -> None:
        """Releases an unloaded model's memory; no references to the model may remain."""
        self._events.clear()
        self._warmup_prefixes.clear()
        gc.unfreeze()  # undoes the `gc.freeze` after loading, so that the model is collected
        gc.collect()
        gc.freeze()
        memory.release_free_memory()
        self._report(messages.ModelUnloaded())

    def _on_worker_lost(self, reason: str) -> None:
        """Reports a lost rank; the caller exits after the grace period."""
        self._report(messages.EngineDead(reason))
        time.sleep(messages.SHUTDOWN_GRACE_SECONDS)

    def _run_loop(self, llm: LLM) -> bool:
        """Serves until `UnloadModel` (returns True) or `Shutdown` (False).

        Each iteration processes all queued commands, runs a step and reports its results. Blocks
        until a command arrives if there is nothing to compute.
        """
        self._report(messages.StepReport((), _engine_stats(llm)))
        while True:
            # [task 5.2.3 round]
            has_work = llm.has_unfinished_requests or bool(self._warmup_prefixes)
            if not has_work:
                self._trim_memory(llm)
            outputs: list[StreamOutput] = []
            for command in self._drain_commands(llm, wait=not has_work):
                if isinstance(command, messages.UnloadModel | messages.Shutdown):
                    return isinstance(command, messages.UnloadModel)
                outputs += self._handle_command(llm, command)
            outputs += self._step(llm)
            self._report_step(llm, outputs)
            # [/task 5.2.3 round]

    def _drain_commands(self, llm: LLM, wait: bool) -> Iterator[messages.EngineCommand]:
        """Yields all queued commands.

        With `wait`, blocks until a command arrives or `LLM.check_memory` has changed the memory
        statistics, which must be reported.
        """
        # [task 5.2.3 drain]
        while wait:
            try:
                yield self._command_queue.get(timeout=MEMORY_CHECK_INTERVAL)
                wait = False
            except queue.Empty:
                wait = not llm.check_memory()
        while True:
            try:
                yield self._command_queue.get_nowait()
            except queue.Empty:
                return
        # [/task 5.2.3 drain]

    def _handle_command(self, llm: LLM, command: messages.EngineCommand) -> Sequence[StreamOutput]:
        match command:
            case messages.AddRequest():
                self._num_submitted += 1
                return _add_request(llm, command)
            case messages.AbortRequest(request_id):
                llm.abort(request_id)
            case messages.Precompute():
                self._warmup_prefixes.append(command)
            case messages.EnableEvents(enabled):
                llm.scheduler.listener = self._on_event if enabled else None
                self._next_snapshot = 0.0
            case messages.SnapshotRequest():
                self._snapshot_requested = True
        return ()

    def _step(self, llm: LLM) -> Sequence[StreamOutput]:
        outputs: Sequence[StreamOutput] = ()
        self.step_started_at = time.monotonic()
        if llm.has_unfinished_requests:
            outputs = llm.step()
        elif self._warmup_prefixes:
            prefix = self._warmup_prefixes[-1]
            if not llm.precompute(prefix.token_ids, prefix.lora):
                self._warmup_prefixes.pop()
        self.step_started_at = None
        return outputs

    def _report_step(self, llm: LLM, outputs: Sequence[StreamOutput]) -> None:
        for output in outputs:
            if output.finish_reason == "error":
                log.error("request %s: %s", output.request_id, output.error)
        # Later steps update a `request_output`, so it must not leave this thread.
        immutable = tuple(output._replace(request_output=None) for output in outputs)  # type: ignore[arg-type]
        events, self._events = tuple(self._events), []
        stats, snapshot_taken = _engine_stats(llm), self._snapshot(llm)
        self._report(messages.StepReport(immutable, stats, events, snapshot_taken))

    def _snapshot(self, llm: LLM) -> dict[str, Any] | None:
        now = time.monotonic()
        is_due = now >= self._next_snapshot or not llm.has_unfinished_requests
        if not self._snapshot_requested and not (is_due and llm.scheduler.listener is not None):
            return None
        self._snapshot_requested = False
        self._next_snapshot = now + SNAPSHOT_INTERVAL
        return {**snapshot(llm.scheduler), "time": time.time()}

    def _trim_memory(self, llm: LLM) -> None:
        if self._num_submitted >= memory.TRIM_INTERVAL and self._command_queue.empty():
            self._num_submitted = 0
            llm.runner.target.release_scratch()
            memory.trim_heap()

    def _on_event(self, event: Event) -> None:
        self._events.append({**event, "time": time.time()})


def _add_request(llm: LLM, command: messages.AddRequest) -> Sequence[StreamOutput]:
    """Queues a request; returns its completions' errors if the engine rejects it."""
    timeout = None
    if command.deadline is not None:  # the deadline may have passed in the queue
        timeout = max(command.deadline - time.monotonic(), 1e-6)
    try:
        llm.add_tokenized_request(
            command.token_ids,
            command.params,
            request_id=command.request_id,
            enable_thinking=command.thinking_enabled,
            timeout=timeout,
            lora=command.lora,
        )
    except UserError as error:  # the event loop's checks differ from the engine's
        failed = StreamOutput(command.request_id, 0, "", (), "error", error=str(error))
        return [failed._replace(index=index) for index in range(command.params.n)]
    return ()


def _engine_ready(llm: LLM) -> messages.EngineReady:
    config = llm.scheduler.config
    # One more than the KV cache holds, because the last token's keys and values are never stored.
    max_seq_len = min(config.max_seq_len, config.max_tokens_in_pages + 1)
    return messages.EngineReady(
        llm.vocab_size,
        max_seq_len,
        config.max_num_seqs,
        llm.describe(),
        llm.runner.target.model.hidden_size,
        llm.tokenizer,
        llm.compile_grammar,
    )


def _engine_stats(llm: LLM) -> messages.EngineStats:
    scheduler, statistics = llm.scheduler, llm.runner.statistics
    states, disk_cache = scheduler.pages.states, llm.disk_cache
    counts = None if states is None else states.counts()
    return messages.EngineStats(
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        pages=scheduler.config.num_pages,
        free_pages=scheduler.pages.num_available,
        state_slots=scheduler.config.num_state_slots,
        used_state_slots=0 if counts is None else counts.used,
        checkpoints=0 if counts is None else counts.checkpoints,
        prompt_tokens=scheduler.num_prompt_tokens,
        cached_tokens=scheduler.num_cached_tokens,
        preemptions=scheduler.num_preemptions,
        steps=statistics.target_steps,
        draft_tokens=statistics.num_draft_tokens,
        accepted_draft_tokens=statistics.num_accepted_tokens,
        disk_cache=None if disk_cache is None else asdict(disk_cache.stats),
        memory_evictions=llm.num_memory_evictions,
    )
