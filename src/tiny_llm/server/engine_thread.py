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

from ..engine.events import Event, event_fields
from ..engine.llm import LLM
from ..engine.outputs import RequestMetrics, StreamOutput
from ..engine.snapshot import PERIOD, snapshot
from ..engine.structured_outputs import ToolCalls
from ..errors import UserError
from ..models import free_memory
from . import seam

log = logging.getLogger("tiny_llm.server")

WORKERS = 2  # that compile grammars
MOST_AHEAD = 4  # prompts that are computed before they are asked for


@dataclass(frozen=True)
class Prepared:
    """The grammar of a request is compiled, or refused for a reason; a worker's message."""

    request: seam.Submit
    refusal: str | None


Inbox = queue.SimpleQueue[seam.ToEngine | Prepared]


class EngineThread(threading.Thread):
    """Runs an engine.

    Args:
        load: makes the engine; called in this thread.
        inbox: messages for it.
        report: takes its messages; called in this thread, and must not block.

    Attributes:
        step_began: when the current step began, on the clock of `time.monotonic`; None between
            steps. The watchdog reads it.
    """

    def __init__(
        self, load: Callable[[], LLM], inbox: Inbox, report: Callable[[seam.FromEngine], None]
    ):
        super().__init__(name="engine", daemon=True)
        self.step_began: float | None = None
        self._load = load
        self._inbox = inbox
        self._report = report
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="grammars")
        self._preparing: set[str] = set()  # requests whose grammars are being compiled
        self._events: list[dict[str, Any]] = []
        self._is_looked_at = False
        self._next_snapshot = 0.0  # when the next one is due, while the engine is watched
        self._num_logprobs: dict[tuple[str, int], int] = {}  # that were reported, by answer
        self._num_submitted = 0  # since free memory was given back
        # What may be asked for next, the newest last; the oldest is given up.
        self._ahead: deque[tuple[int, ...]] = deque(maxlen=MOST_AHEAD)

    def run(self) -> None:
        """Loads and steps until `Stop`; reports `Died` after anything else that ends it."""
        try:
            llm = self._load()
            llm.before_end(self._lose_rank)
            self._report(_loaded(llm))
            self._serve(llm)
        except UserError as error:  # the model cannot be loaded
            self._report(seam.Died(str(error)))
        except BaseException as error:
            log.exception("the engine's thread ends")
            self._report(seam.Died(f"the engine failed: {type(error).__name__}."))

    def _lose_rank(self, sentence: str) -> None:
        """Reports the end in the thread that has noticed it, which ends the process next."""
        self._report(seam.Died(sentence))
        time.sleep(seam.LAST_WORDS)

    def _serve(self, llm: LLM) -> None:
        self._report(seam.StepReport((), _gauges(llm)))
        while True:
            news: list[seam.Accepted | seam.Refused | seam.Piece] = []
            has_work = llm.has_unfinished_requests or bool(self._ahead)
            if not has_work:
                self._rest(llm)
            for message in self._messages(wait=not has_work):
                self._num_submitted += isinstance(message, seam.Submit)
                match message:
                    case seam.Submit(request_id) if message.params.structured_outputs is not None:
                        self._preparing.add(request_id)
                        self._workers.submit(self._prepare, llm, message)
                    case seam.Submit():
                        news.append(_submit(llm, message))
                    case Prepared(request, refusal):
                        news += self._take_prepared(llm, request, refusal)
                    case seam.Cancel(request_id) if request_id in self._preparing:
                        self._preparing.remove(request_id)
                        news.append(seam.Refused(request_id, "It was cancelled."))
                    case seam.Cancel(request_id):
                        llm.abort(request_id)
                    case seam.Precompute(token_ids):
                        self._ahead.append(token_ids)
                    case seam.Watch(on):
                        llm.scheduler.listener = self._note if on else None
                        self._next_snapshot = 0.0
                    case seam.Look():
                        self._is_looked_at = True
                    case seam.Stop():
                        return
            self.step_began = time.monotonic()
            if llm.has_unfinished_requests:
                news += map(self._piece, llm.step())
            elif self._ahead and not llm.precompute(self._ahead[-1]):
                self._ahead.pop()
            self.step_began = None
            events, self._events = tuple(self._events), []
            self._report(seam.StepReport(tuple(news), _gauges(llm), events, self._snapshot(llm)))

    def _snapshot(self, llm: LLM) -> dict[str, Any] | None:
        """A snapshot, if somebody looks, or watches and the last one is old or work has ended."""
        now = time.monotonic()
        is_due = now >= self._next_snapshot or not llm.has_unfinished_requests
        if not self._is_looked_at and not (is_due and llm.scheduler.listener is not None):
            return None
        self._is_looked_at = False
        self._next_snapshot = now + PERIOD
        return {**snapshot(llm.scheduler), "time": time.time()}

    def _prepare(self, llm: LLM, request: seam.Submit) -> None:
        """Compiles a request's grammar; called by a worker.

        Calls that the model may make, but need not, do without one that cannot be compiled.
        """
        ids, may_think = request.token_ids, request.may_think
        form = request.params.structured_outputs
        refusal = None
        try:
            llm.prepare(ids, request.params, enable_thinking=may_think)
        except UserError as error:
            if isinstance(form, ToolCalls) and form.choice == "auto":
                log.warning("tool calls are not kept to their schemas: %s", error)
                params = replace(request.params, structured_outputs=None)
                request = replace(request, params=params)
            else:
                refusal = str(error)
        except Exception:  # it is told to the client of this request, and to the log
            log.exception("a grammar was not compiled")
            refusal = "The form of the answer could not be compiled."
        self._inbox.put(Prepared(request, refusal))

    def _take_prepared(
        self, llm: LLM, request: seam.Submit, refusal: str | None
    ) -> list[seam.Accepted | seam.Refused]:
        """Adds a request whose grammar is ready, unless it was cancelled meanwhile."""
        if request.request_id not in self._preparing:
            return []
        self._preparing.remove(request.request_id)
        if refusal is not None:
            return [seam.Refused(request.request_id, refusal)]
        return [_submit(llm, request)]

    def _rest(self, llm: LLM) -> None:
        """Gives memory back, after so many requests that there may be some."""
        if self._num_submitted >= free_memory.REQUESTS and self._inbox.empty():
            self._num_submitted = 0
            llm.rest()
            free_memory.give_back()

    def _messages(self, wait: bool) -> Iterator[seam.ToEngine | Prepared]:
        """All messages that are there; with `wait`, at least one."""
        if wait:
            yield self._inbox.get()
        while True:
            try:
                yield self._inbox.get_nowait()
            except queue.Empty:
                return

    def _note(self, event: Event) -> None:
        self._events.append({**event_fields(event), "time": time.time()})

    def _piece(self, output: StreamOutput) -> seam.Piece:
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
        return seam.Piece(
            output.request_id,
            output.index,
            output.text,
            output.token_ids,
            logprobs,
            whole.num_cached_tokens,
            output.finish_reason,
            answer.stop_reason,
            _times(whole.metrics, len(answer.token_ids)) if ended else None,
            scored,
            is_first,
        )


def _submit(llm: LLM, message: seam.Submit) -> seam.Accepted | seam.Refused:
    """Adds a request, or says why not."""
    ids, request_id = list(message.token_ids), message.request_id
    try:
        llm.add_request(
            ids, message.params, request_id=request_id, enable_thinking=message.may_think
        )
    except UserError as error:
        return seam.Refused(message.request_id, str(error))
    return seam.Accepted(message.request_id)


def _max_seq_len(llm: LLM) -> int:
    """Tokens that a request may have. The last of an answer needs no place in a page."""
    config = llm.scheduler.config
    return min(config.max_seq_len, config.num_pages * config.page_size + 1)


def _loaded(llm: LLM) -> seam.Loaded:
    config = llm.scheduler.config
    return seam.Loaded(llm.vocab_size, _max_seq_len(llm), config.max_num_seqs, llm.describe())


def _times(metrics: RequestMetrics, tokens: int) -> seam.Times:
    assert metrics.finished_time is not None
    total = metrics.finished_time - metrics.arrival_time
    return seam.Times(metrics.queue_seconds, metrics.ttft, total, tokens)


def _gauges(llm: LLM) -> seam.Gauges:
    scheduler, statistics = llm.scheduler, llm.runner.statistics
    return seam.Gauges(
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        pages=scheduler.config.num_pages,
        free_pages=scheduler.pages.num_available,
        prompt_tokens=scheduler.num_prompt_tokens,
        cached_tokens=scheduler.num_cached_tokens,
        preemptions=scheduler.num_preemptions,
        steps=statistics.steps,
        guesses=statistics.proposed,
        accepted_guesses=statistics.accepted,
    )
