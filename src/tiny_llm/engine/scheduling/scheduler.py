"""Scheduler: admission, token budget, preemption.

A step is a list of chunks; a chunk is a half-open interval of one request's tokens. A step's chunks
have at most `max_num_batched_tokens` tokens in total. Order, oldest request first:

    1. one token, plus draft tokens, for every decoding request: every step advances all of them
    2. the next chunk of each partially computed prompt
    3. admissions from the queue, within `max_num_seqs`, the token budget and the free pages

Admission allocates pages for all tokens of the request, so only decoding allocates later. When no
page is free, unused pages are evicted from the prefix cache. If that is not enough, the *youngest*
running request is preempted: its pages are released, it returns to the head of the queue, and its
tokens are recomputed.

No starvation: the oldest request is never preempted, and `add` rejects requests that do not fit
alone, so the oldest always finishes. Then the next one is the oldest.

The queue is strictly first come, first served. The head waits despite free pages in one case: its
next page is already being computed by a running request. One step later that page is a prefix cache
hit, so of many requests with the same prompt only one computes it.

Plain Python: no models, text, clocks or MLX.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...errors import OutOfPagesError, QueueFullError, UserError
from .batch import Chunk, ChunkOutput, SchedulerOutput
from .config import SchedulerConfig
from .events import (
    ChunkPlan,
    Event,
    Listener,
    RequestAdded,
    RequestAdmitted,
    RequestEnded,
    RequestPreempted,
    StepScheduled,
    TokensAdded,
)
from .limits import fitting_max_tokens
from .page_manager import PageKey, PageManager
from .request import EngineRequest, FinishReason, RequestState


class Scheduler:
    """Plans steps (`schedule`) and applies their results (`update_from_output`).

    Other methods may be called between the two; the results of an aborted request are discarded.

    Args:
        config: memory and limits.
        listener: callback for every event, or None.

    Attributes:
        pages: page ownership of all requests.
        waiting: the queue, oldest first, preempted requests at the head.
        running: requests with pages, oldest first.
        num_preemptions: total preemptions.
        num_prompt_tokens: prompt tokens of all admitted requests.
        num_cached_tokens: prompt tokens served by the prefix cache.
    """

    def __init__(self, config: SchedulerConfig, listener: Listener | None = None):
        self.config = config
        self.listener = listener
        self.pages = PageManager(config.num_pages, config.page_size, config.enable_prefix_caching)
        self.waiting: deque[EngineRequest] = deque()
        self.running: list[EngineRequest] = []
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self._requests: dict[str, EngineRequest] = {}
        self._num_arrived = 0
        self._num_steps = 0

    # ---------------------------------------------------------------- adding and ending requests

    def add(self, request: EngineRequest) -> None:
        """Appends a request to the queue and resolves its `max_tokens`.

        Raises:
            UserError: a duplicate id, an empty prompt, or more tokens than fit in the model's
                context or the KV memory.
        """
        if request.request_id in self._requests:
            raise UserError(
                f"request_id '{request.request_id}' is already used by an unfinished request."
            )
        max_tokens, params = request.max_tokens, request.params
        if params.clamp_max_tokens:
            request.max_tokens = None
        room = fitting_max_tokens(self.config, request)
        if room < params.min_tokens:
            raise UserError(
                f"min_tokens must be at most {room} after a prompt of "
                f"{request.num_prompt_tokens} tokens, got {params.min_tokens}."
            )
        request.max_tokens = min(max_tokens or room, room)
        request.arrival_index = self._num_arrived
        self._num_arrived += 1
        self._requests[request.request_id] = request
        self.waiting.append(request)
        self._emit(RequestAdded, request.request_id, request.num_prompt_tokens, request.max_tokens)

    def check_queue_limit(self, num_requests: int) -> None:
        """Checks that the queue has room for `num_requests` more.

        Raises:
            QueueFullError: see `SchedulerConfig.max_queue`.
        """
        config, num_present = self.config, len(self._requests)
        if config.max_queue is None:
            return
        limit = config.max_num_seqs + config.max_queue
        if num_present + num_requests > limit:
            raise QueueFullError(
                f"the queue is full: {num_present} unfinished requests, at most {limit} allowed "
                f"(max_num_seqs + max_queue), {num_requests} more given; try again later."
            )

    def finish(
        self, request: EngineRequest, reason: FinishReason, error: str | None = None
    ) -> None:
        """Ends a request in any state and releases its pages; a no-op if it has ended."""
        if request.is_done:
            return
        if request.state is RequestState.RUNNING:
            self.pages.release(request)
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        del self._requests[request.request_id]
        request.end(reason)
        self._emit(RequestEnded, request.request_id, reason, request.num_output_tokens, error)

    def abort(self, request_id: str) -> bool:
        """Aborts a request; returns False if the id is unknown."""
        request = self._requests.get(request_id)
        if request is not None:
            self.finish(request, "abort")
        return request is not None

    @property
    def has_requests(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._requests)

    # ---------------------------------------------------------------- one step

    def schedule(self) -> SchedulerOutput:
        """Plans the next step, which is empty only if no request is unfinished."""
        # [task 3.3.2 schedule]
        budget = self.config.max_num_batched_tokens
        preempted_before = self.num_preemptions
        chunks = self._schedule_decoding()
        budget -= sum(chunk.num_tokens for chunk in chunks)
        in_flight: set[PageKey] = set()
        for request in self.running:
            if budget > 0 and request.num_uncomputed > 1:
                chunks.append(self._prefill(request, budget, in_flight))
                budget -= chunks[-1].num_tokens
        if self.num_preemptions == preempted_before:  # otherwise pages would thrash
            while budget > 0 and self._admit_head(in_flight):
                chunks.append(self._prefill(self.running[-1], budget, in_flight))
                budget -= chunks[-1].num_tokens
        step = SchedulerOutput(self._num_steps, tuple(chunks))
        # [/task 3.3.2 schedule]
        self._num_steps += 1
        if self.listener is not None and chunks:
            self.listener(self._step_event(step))
        return step

    def _schedule_decoding(self) -> list[Chunk]:
        """Returns one chunk per decoding request: its last token and useful draft tokens."""
        decoding = [
            request
            for request in list(self.running)
            # `_make_room` preempts: an earlier iteration may have preempted this request.
            if request.state is RequestState.RUNNING
            and request.num_uncomputed == 1
            and self._make_room(request)
        ]
        chunks = []
        spare = self.config.max_num_batched_tokens - len(decoding) * (1 + self.config.num_drafts)
        spare //= 2  # the other half is for prompts
        for request in decoding:  # pages of the mandatory tokens are allocated by now
            num_drafts = self._room_for_drafts(request, spare)
            spare -= max(0, num_drafts - self.config.num_drafts)
            start, end = request.num_computed, request.num_tokens
            chunks.append(Chunk(request, start, end, num_drafts, samples=True))
        assert sum(chunk.num_tokens for chunk in chunks) <= self.config.max_num_batched_tokens
        return chunks

    def _prefill(self, request: EngineRequest, budget: int, in_flight: set[PageKey]) -> Chunk:
        """Returns the next chunk of a prompt; adds the page it fills to `in_flight`."""
        # [task 3.3.2 prefill]
        end = min(request.num_tokens, request.num_computed + budget)
        in_flight.add((request.last_node, self.pages.tokens_of_page(request, request.num_shared)))
        return Chunk(request, request.num_computed, end, 0, end == request.num_tokens)
        # [/task 3.3.2 prefill]

    def _admit_head(self, in_flight: set[PageKey]) -> bool:
        """Admits the head of the queue if `max_num_seqs` and the free pages allow it."""
        # [task 3.3.2 admission]
        if not self.waiting or len(self.running) >= self.config.max_num_seqs:
            return False
        request = self.waiting[0]
        path = self.pages.match(request)
        if self.pages.next_key(request, path) in in_flight:
            return False
        # Every running request soon needs another page: without a reserve, the new request would
        # be preempted at once.
        if not self.pages.admit(request, path, reserve=len(self.running)):
            return False
        # [/task 3.3.2 admission]
        if request.num_preemptions == 0:
            request.num_cached_tokens = request.num_computed
            self.num_prompt_tokens += request.num_prompt_tokens
            self.num_cached_tokens += request.num_computed
        request.state = RequestState.RUNNING
        self.running.append(self.waiting.popleft())
        self._emit(RequestAdmitted, request.request_id, request.num_computed)
        return True

    def update_from_output(self, step: SchedulerOutput, results: Mapping[str, ChunkOutput]) -> None:
        """Appends sampled tokens, updates the computed counts and shares full pages.

        Args:
            step: the step that `schedule` returned.
            results: by request id, for each chunk that samples or scores; no tokens after one that
                ends the request.
        """
        for chunk in step.chunks:
            request = chunk.request
            if request.state is not RequestState.RUNNING:
                continue  # aborted while in flight
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
                tokens = tuple(result.token_ids)
                self._emit(TokensAdded, request.request_id, tokens, len(tokens) - 1)
            self.pages.share_full_pages(
                request, request.num_computed - request.num_draft_uncomputed
            )

    def update_draft_tokens(self, request: EngineRequest, token_ids: Sequence[int]) -> None:
        """Sets the draft tokens that the request's next step verifies; called between steps."""
        request.draft_token_ids = token_ids

    # ---------------------------------------------------------------- out of pages

    def _make_room(self, request: EngineRequest) -> bool:
        """Allocates pages for all tokens of a request; preempts the youngest if necessary.

        Returns:
            False if the request was itself the youngest and got preempted.
        """
        while True:
            try:
                self.pages.grow(request, request.num_tokens)
                return True
            except OutOfPagesError:
                # [task 3.3.4 room]
                youngest = self.running[-1]
                self._preempt(youngest)
                if youngest is request:
                    return False
                # [/task 3.3.4 room]

    def _room_for_drafts(self, request: EngineRequest, spare: int) -> int:
        """Number of useful draft tokens that fit without preemption.

        Args:
            request: a decoding request.
            spare: token budget left for model-free draft tokens.
        """
        assert request.max_tokens is not None
        draft_tokens = self.config.num_drafts or min(len(request.draft_token_ids), spare)
        # A step yields one token more than it accepts, so the last output token needs no draft.
        useful = min(draft_tokens, request.max_tokens - request.num_output_tokens - 1)
        if useful <= 0:
            return 0
        room = self.pages.grow_if_possible(request, request.num_tokens + useful)
        return min(useful, room - request.num_tokens)

    def _preempt(self, request: EngineRequest) -> None:
        """Releases a running request's pages and requeues it for recomputation."""
        lost = request.num_computed
        # [task 3.3.4 preempt]
        self.pages.release(request)
        self.running.remove(request)
        request.num_preemptions += 1
        request.state = RequestState.PREEMPTED
        self.waiting.appendleft(request)
        self.num_preemptions += 1
        # [/task 3.3.4 preempt]
        self._emit(RequestPreempted, request.request_id, lost)

    # ---------------------------------------------------------------- events and invariants

    def _emit(self, event: Callable[..., Event], *fields: object) -> None:
        if self.listener is not None:
            self.listener(event(*fields))

    def _step_event(self, step: SchedulerOutput) -> StepScheduled:
        return StepScheduled(
            step.index,
            tuple(
                ChunkPlan(chunk.request.request_id, chunk.start, chunk.end, chunk.num_drafts)
                for chunk in step.chunks
            ),
            _ids(self.running),
            _ids(self.waiting),
            self.pages.counts(self.running),
        )

    def check_integrity(self) -> None:
        """Asserts page ownership, request states, queue order and the running limit."""
        self.pages.check_integrity(self.running)
        for request in self.running:
            assert request.state is RequestState.RUNNING
        for request in self.waiting:
            assert not request.page_ids
            assert request.num_computed == 0
        for what, requests in (("running", self.running), ("waiting", self.waiting)):
            arrivals = [request.arrival_index for request in requests]
            assert arrivals == sorted(arrivals), f"{what} is not in order of arrival: {arrivals}"
        assert len(self.running) <= self.config.max_num_seqs
        assert len(self.running) + len(self.waiting) == len(self._requests)


def _ids(requests: Iterable[EngineRequest]) -> tuple[str, ...]:
    return tuple(request.request_id for request in requests)
