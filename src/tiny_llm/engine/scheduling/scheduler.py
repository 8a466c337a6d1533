"""Scheduler: admission, token budget, preemption.

A step is a list of chunks; a chunk is a half-open interval of one request's tokens. A step's chunks
have at most `max_num_batched_tokens` tokens in total. Priorities, each oldest request first:

    1. one token, plus draft tokens, for every decoding request: every step advances all of them
    2. the next chunk of each partially computed prompt
    3. admissions from the queue, within `max_num_seqs`, the token budget and the free pages

Admission allocates pages for all tokens of the request, so only decoding allocates later. When no
page is free, unused pages are evicted from the prefix cache. If that is not enough, the *youngest*
running request is preempted: its pages are released, it returns to the head of the queue, and its
tokens are recomputed. With a sliding window, admission allocates no more pages than a step needs,
so long prompts allocate later, too.

No starvation: the oldest request is never preempted, and `add` rejects requests too large to run
alone, so the oldest always finishes. Then the next one is the oldest. The argument also holds with
recurrent state slots: a running request always has one to write, and the head of the queue can be
admitted at the latest when no request is running (`state_slots.py`).

The queue is strictly first come, first served. Even if the limits allow it, the head is not
admitted while a running request computes the head's next page or reads it from disk. The page then
becomes a prefix cache hit, so only one of many requests with the same prompt computes or reads it.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...errors import OutOfPagesError, QueueFullError, UserError
from .config import KvGroup, Listener, SchedulerConfig
from .kv_cache_groups import GroupPageManager
from .page_manager import PageKey, PageManager
from .request import (
    Chunk,
    ChunkOutput,
    EngineRequest,
    FinishReason,
    RequestState,
    SchedulerOutput,
    fitting_max_tokens,
)

log = logging.getLogger("tiny_llm.engine")


class Scheduler:
    """Plans steps (`schedule`) and applies their results (`update_from_output`).

    Other methods may be called between the two; results of aborted requests are discarded.

    Attributes:
        waiting: the queue, oldest first, preempted requests at the head.
        running: requests with pages, oldest first.
        start_load: callback that starts reading an admitted request's next pages from disk, and
            returns the number of tokens in them.
        num_prompt_tokens: total prompt tokens of admitted requests.
        num_cached_tokens: total prompt tokens served from the prefix cache.
    """

    def __init__(self, config: SchedulerConfig, listener: Listener | None = None):
        self.config = config
        self.listener = listener
        self.pages = self._page_manager()
        self.waiting: deque[EngineRequest] = deque()
        self.running: list[EngineRequest] = []
        self.start_load: Callable[[EngineRequest], int] = lambda request: 0
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self._requests: dict[str, EngineRequest] = {}
        self._num_arrived = 0
        self._num_steps = 0

    def _page_manager(self) -> PageManager:
        is_grouped = self.config.kv_groups != (KvGroup(),)
        return (GroupPageManager if is_grouped else PageManager)(self.config)

    # ---------------------------------------------------------------- adding and ending requests

    def add(self, request: EngineRequest) -> None:
        """Appends a request to the queue and resolves its `max_tokens`."""
        assert request.request_id not in self._requests, f"duplicate {request}"
        max_tokens, params = request.max_tokens, request.params
        if params.clamp_max_tokens:
            request.max_tokens = None
        largest = fitting_max_tokens(self.config, request)
        if largest < params.min_tokens:
            raise UserError(
                f"min_tokens must be at most {largest} for a prompt of "
                f"{request.num_prompt_tokens} tokens, got {params.min_tokens}."
            )
        request.max_tokens = min(max_tokens or largest, largest)
        request.arrival_index = self._num_arrived
        self._num_arrived += 1
        self._requests[request.request_id] = request
        self.waiting.append(request)
        self._emit(
            "request_added",
            request_id=request.request_id,
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
        )

    def check_queue_limit(self, num_requests: int) -> None:
        """Checks that the queue has capacity for `num_requests` more requests."""
        config, num_unfinished = self.config, len(self._requests)
        if config.max_queue is None:
            return
        limit = config.max_num_seqs + config.max_queue
        if num_unfinished + num_requests > limit:
            raise QueueFullError(
                f"the queue is full: {num_unfinished} unfinished requests plus {num_requests} new "
                f"exceed the limit of {limit} (max_num_seqs + max_queue); try again later."
            )

    def finish(
        self, request: EngineRequest, reason: FinishReason, error: str | None = None
    ) -> None:
        """Ends a request in any state and releases its pages; no-op if it has ended."""
        if request.is_done:
            return
        if request.state is RequestState.RUNNING:
            self.pages.release(request)
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        del self._requests[request.request_id]
        request.end(reason)
        self._emit_end(request, error)

    @property
    def has_requests(self) -> bool:
        return bool(self._requests)

    # ---------------------------------------------------------------- one step

    def schedule(self) -> SchedulerOutput:
        """Plans the next step, without chunks while all requests wait for pages from disk."""
        # [task 3.3.3 schedule]
        budget = self.config.max_num_batched_tokens
        preempted_before = self.num_preemptions
        chunks = self._schedule_decoding()
        budget -= sum(chunk.num_tokens for chunk in chunks)
        in_flight: set[PageKey] = set()
        for request in self.running:
            if budget > 0 and request.num_uncomputed > 1:
                chunks.append(self._prefill(request, budget, in_flight))
                budget -= chunks[-1].num_tokens
        # Admit nothing after a preemption, because the new request would soon be preempted, too.
        if self.num_preemptions == preempted_before:
            while budget > 0 and self._admit_head(in_flight):
                chunks.append(self._prefill(self.running[-1], budget, in_flight))
                budget -= chunks[-1].num_tokens
        step = SchedulerOutput(self._num_steps, tuple(chunks))
        # [/task 3.3.3 schedule]
        return self._finish_plan(step)

    def _finish_plan(self, step: SchedulerOutput) -> SchedulerOutput:
        states = self.pages.states
        if states is not None:
            step = states.plan(step, self.waiting[0] if self.waiting else None)
        self._num_steps += 1
        if self.listener is not None and step.chunks:
            self._emit_step(step)
        return step

    def _schedule_decoding(self) -> list[Chunk]:
        """Returns one chunk per decoding request: its last token and draft tokens."""
        with_pages = [
            request
            for request in list(self.running)
            # An earlier `_allocate_or_preempt` may have preempted this request.
            if request.state is RequestState.RUNNING and self._allocate_or_preempt(request)
        ]
        if self.pages.states is not None:  # after the pages, which are needed more
            self.pages.states.begin_step(self.running, self.waiting)
        decoding = [request for request in with_pages if request.num_uncomputed == 1]
        chunks = []
        spare = self.config.max_num_batched_tokens - len(decoding) * (1 + self.config.num_drafts)
        spare //= 2  # draft tokens get at most half; prompt chunks get the rest
        # Each request has a page for its last token; draft tokens use the remaining pages.
        for request in decoding:
            num_drafts = self._num_fitting_drafts(request, spare)
            spare -= num_drafts
            start, end = request.num_computed, request.num_tokens
            chunks.append(Chunk(request, start, end, num_drafts, samples=True))
        assert sum(chunk.num_tokens for chunk in chunks) <= self.config.max_num_batched_tokens
        return chunks

    def _prefill(self, request: EngineRequest, budget: int, in_flight: set[PageKey]) -> Chunk:
        """Returns the next chunk of a prompt; adds the page it fills to `in_flight`."""
        # [task 3.3.3 prefill]
        end = min(request.num_tokens, request.num_computed + budget)
        in_flight.add((request.last_node, self.pages.tokens_of_page(request, request.num_shared)))
        return Chunk(request, request.num_computed, end, 0, end == request.num_tokens)
        # [/task 3.3.3 prefill]

    def _admit_head(self, in_flight: set[PageKey]) -> bool:
        """Admits requests until one has tokens to compute; returns whether one has."""
        while self._admit_one(in_flight):
            if not self.running[-1].num_loading:
                return True
        return False

    def _admit_one(self, in_flight: set[PageKey]) -> bool:
        """Admits the head of the queue if limits, free pages and slots allow it."""
        states = self.pages.states
        if (
            states is not None
            and self.waiting
            and not states.can_admit(self.waiting[0], self.running)
        ):
            return False
        in_flight = in_flight | self._loading_keys()
        # [task 3.3.3 admission]
        if not self.waiting or len(self.running) >= self.config.max_num_seqs:
            return False
        request = self.waiting[0]
        path = self.pages.match(request)
        if self.pages.next_key(request, path) in in_flight:
            return False
        # Reserve a page for each running request, which will soon need it. Otherwise, the new
        # request would be preempted at once.
        if not self.pages.admit(request, path, reserve=len(self.running)):
            return False
        # [/task 3.3.3 admission]
        if states is not None:
            states.admit(request)
        if request.num_preemptions == 0:
            request.num_cached_tokens = request.num_computed
            self.num_prompt_tokens += request.num_prompt_tokens
            self.num_cached_tokens += request.num_computed
        request.state = RequestState.RUNNING
        self.running.append(self.waiting.popleft())
        cached_tokens = request.num_computed
        self._emit("request_admitted", request_id=request.request_id, cached_tokens=cached_tokens)
        request.num_loading = self.start_load(request)
        return True

    def _loading_keys(self) -> set[PageKey]:
        return {
            (request.last_node, self.pages.tokens_of_page(request, request.num_shared))
            for request in self.running
            if request.num_loading
        }

    def finish_load(self, request: EngineRequest, num_tokens: int) -> None:
        """Marks `num_tokens` tokens, whose pages and state were loaded, as computed.

        The remaining tokens that `start_load` announced, possibly all, are computed next. If they
        need pages that the load has replaced, the request is preempted, with all younger ones.
        """
        request.num_loading = 0
        if num_tokens == 0:
            while request in self.running and not self.pages.has_context(request):
                self._preempt(self.running[-1])
            return
        start, end = request.num_computed, request.num_computed + num_tokens
        request.num_computed = end
        if request.num_preemptions == 0:
            request.num_cached_tokens += num_tokens
            self.num_cached_tokens += num_tokens
        self.pages.share_full_pages(request, end)
        if self.pages.states is not None:
            self.pages.states.finish_load(Chunk(request, start, end, 0, samples=False))

    def update_from_output(self, step: SchedulerOutput, results: Mapping[str, ChunkOutput]) -> None:
        """Appends sampled tokens, updates the computed counts and shares full pages.

        Args:
            results: by request id, for each chunk that samples or scores, truncated after a token
                that ends the request.
        """
        for chunk in step.chunks:
            request = chunk.request
            if request.state is not RequestState.RUNNING:
                continue  # aborted while the step was in flight
            request.num_computed = chunk.end
            request.num_draft_uncomputed = 0
            if request.request_id in results:
                request.num_scored += len(results[request.request_id].prompt_logprobs)
            if chunk.samples:
                result = results[request.request_id]
                assert 1 <= len(result.token_ids) <= 1 + chunk.num_drafts
                request.token_ids.extend(result.token_ids)
                request.num_computed = request.num_tokens - 1
                request.num_draft_uncomputed = result.num_draft_uncomputed
                self._emit(
                    "tokens_added",
                    request_id=request.request_id,
                    token_ids=result.token_ids,
                    accepted=len(result.token_ids) - 1,
                )
            num_written = request.num_computed - request.num_draft_uncomputed
            self.pages.share_full_pages(request, num_written)
            self.pages.free_before_window(request, num_written)
            if self.pages.states is not None:
                self.pages.states.update(chunk)

    def record_step_time(self, step: SchedulerOutput, seconds: float) -> None:
        """Receives a step's duration; a no-op that `FairScheduler` overrides."""

    def update_draft_tokens(self, request: EngineRequest, token_ids: Sequence[int]) -> None:
        """Sets the draft tokens to verify next; called between steps."""
        request.draft_token_ids = token_ids

    # ---------------------------------------------------------------- out of pages

    def _allocate_or_preempt(self, request: EngineRequest) -> bool:
        """Allocates pages for a request's next step; preempts others if necessary.

        Returns False if the request itself was preempted, because it was the youngest.
        """
        max_end = request.num_computed + self.config.max_num_batched_tokens
        while True:
            try:
                self.pages.grow(request, min(request.num_tokens, max_end))
                return True
            except OutOfPagesError:
                # [task 3.4.3 room]
                youngest = self.running[-1]
                self._preempt(youngest)
                if youngest is request:
                    return False
                # [/task 3.4.3 room]

    def _num_fitting_drafts(self, request: EngineRequest, spare: int) -> int:
        """Returns the number of useful draft tokens that fit without preemption.

        `spare` limits draft tokens from n-grams or grammars; the token budget always has room for a
        draft model's.
        """
        assert request.max_tokens is not None
        draft_tokens = self.config.num_drafts or min(len(request.draft_token_ids), spare)
        # A step yields one more token than it accepts, so the last output token is never drafted.
        useful = min(draft_tokens, request.max_tokens - request.num_output_tokens - 1)
        if useful <= 0:
            return 0
        capacity = self.pages.grow_if_possible(request, request.num_tokens + useful)
        num_fitting = min(useful, capacity - request.num_tokens)
        states = self.pages.states
        return num_fitting if states is None else states.reserve_drafts(request, num_fitting)

    def requeue(self, step: SchedulerOutput) -> None:
        """Preempts the requests of a step that was interrupted before its results."""
        computed = {chunk.request for chunk in step.chunks}
        for request in [*self.running][::-1]:
            if request in computed:
                self._preempt(request)

    def reset(self) -> None:
        """Aborts all requests and empties the prefix cache, whatever their state."""
        requests = list(self._requests.values())
        self._requests.clear()
        self.running.clear()
        self.waiting.clear()
        self.pages = self._page_manager()
        for request in requests:
            if not request.is_done:
                request.end("abort")
            self._emit_end(request)

    def _preempt(self, request: EngineRequest) -> None:
        """Releases a running request's pages and requeues it for recomputation."""
        lost = request.num_computed
        # [task 3.4.3 preempt]
        self.pages.release(request)
        self.running.remove(request)
        request.num_preemptions += 1
        request.state = RequestState.PREEMPTED
        self.waiting.appendleft(request)
        self.num_preemptions += 1
        # [/task 3.4.3 preempt]
        self._emit("request_preempted", request_id=request.request_id, lost_tokens=lost)

    # ---------------------------------------------------------------- events and invariants

    def _emit(self, name: str, **fields: Any) -> None:
        if self.listener is not None:
            try:
                self.listener({"event": name, **fields})
            except Exception:  # a listener's mistake must not affect the requests
                log.exception("the listener failed on the event %s", name)

    def _emit_end(self, request: EngineRequest, error: str | None = None) -> None:
        self._emit(
            "request_ended",
            request_id=request.request_id,
            reason=request.finish_reason,
            output_tokens=request.num_output_tokens,
            error=error,
        )

    def _emit_step(self, step: SchedulerOutput) -> None:
        chunks = [
            {
                "request_id": chunk.request.request_id,
                "start": chunk.start,
                "end": chunk.end,
                "num_drafts": chunk.num_drafts,
            }
            for chunk in step.chunks
        ]
        self._emit(
            "step_scheduled",
            step=step.index,
            chunks=chunks,
            running=[request.request_id for request in self.running],
            waiting=[request.request_id for request in self.waiting],
            pages=asdict(self.pages.counts(self.running)),
        )
        if self.pages.states is not None:
            self._emit("state_slot_counts", **asdict(self.pages.states.counts()))

    def check_integrity(self) -> None:
        self.pages.check_integrity(self.running)
        for request in self.running:
            assert request.state is RequestState.RUNNING
        for request in self.waiting:
            assert not request.page_ids
            assert request.num_computed == 0
            assert request.state_slots is None
        for what, requests in (("running", self.running), ("waiting", self.waiting)):
            arrivals = [request.arrival_index for request in requests]
            assert arrivals == sorted(arrivals), f"{what} is not in order of arrival: {arrivals}"
        assert len(self.running) <= self.config.max_num_seqs
        assert len(self.running) + len(self.waiting) == len(self._requests)
