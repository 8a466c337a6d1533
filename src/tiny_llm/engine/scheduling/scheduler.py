"""The scheduler: which tokens are computed next, and which requests have pages.

A step is a list of chunks. A chunk is a half-open interval of one request's tokens. All chunks
together have at most `max_num_batched_tokens`. The order, oldest request first:

    1. one token, and guesses, for every request that decodes, so that every answer grows
    2. the next chunks of prompts that are being computed
    3. requests from the queue, while there are tokens, places and pages

A request is admitted with pages for all the tokens it has, so only decoding asks for more. If no
page is free, the prefix cache gives up pages that no request reads. Then the *youngest* running
request gives up its own and goes back to the head of the queue: preemption by recomputation.

No request starves. The oldest is never preempted, and `add` refuses requests that would not fit
alone, so the oldest always reaches its end. Then the next one is the oldest.

The queue is first come, first served; no request overtakes its head. In one case the head waits
although there is room: a running request is computing the very page that it needs next. A step
later that page is in the prefix cache. So of many requests with one prompt, one computes it.

This file knows requests and pages, and nothing of models, text, time or MLX.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from ...errors import OutOfPagesError, QueueFullError, UserError, short_repr
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
from .page_manager import PageKey, PageManager
from .request import EngineRequest, FinishReason, RequestState


class Scheduler:
    """Plans steps (`schedule`) and takes their results (`update_from_output`).

    Other methods may be called between the two: a request that is aborted then is left out.

    Args:
        config: memory and limits.
        listener: is called with every event, if there is one.

    Attributes:
        pages: the pages of all requests.
        waiting: the queue, oldest first; preempted requests are at its head.
        running: requests with pages, oldest first.
        num_preemptions: preemptions so far.
        num_prompt_tokens: tokens in the prompts of all requests that were admitted.
        num_cached_tokens: how many of them were in the prefix cache.
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

    # ---------------------------------------------------------------- requests come and go

    def add(self, request: EngineRequest) -> None:
        """Puts a request at the end of the queue.

        A request without `max_tokens` gets as many as fit.

        Raises:
            UserError: an id that is taken, an empty prompt, or more tokens than the model's context
                or all pages together can hold.
        """
        if request.request_id in self._requests:
            raise UserError(
                f"request_id '{request.request_id}' is taken by a request that is not finished."
            )
        asked, params = request.max_tokens, request.params
        if params.clamp_max_tokens:
            request.max_tokens = None
        room = self._fitting_max_tokens(request)
        if room < params.min_tokens:
            raise UserError(
                f"min_tokens is {params.min_tokens}, and after the prompt of "
                f"{request.num_prompt_tokens} tokens there is room for {room}."
            )
        request.max_tokens = min(asked or room, room)
        request.arrival_index = self._num_arrived
        self._num_arrived += 1
        self._requests[request.request_id] = request
        self.waiting.append(request)
        self._emit(RequestAdded, request.request_id, request.num_prompt_tokens, request.max_tokens)

    def _fitting_max_tokens(self, request: EngineRequest) -> int:
        """How many tokens the answer may have: as many as asked for, or as many as there is room.

        Room is bounded by `max_seq_len`, and by the places in all pages. The last token of an
        answer is never computed, so it needs no place.

        Raises:
            UserError: see `add`; the sentence says how many tokens the answer may have.
        """
        # [task 3.3.2 fits]
        config, prompt = self.config, request.num_prompt_tokens
        if prompt == 0:
            raise UserError("the prompt is empty; give at least one token.")
        # The last token of an answer is never computed, so it needs no place in a page.
        in_pages = config.num_pages * config.page_size + 1 - prompt
        in_context = config.max_seq_len - prompt
        for room, holder, size in (
            (in_context, "the model's context holds", config.max_seq_len),
            (in_pages, "the declared KV memory holds", config.num_pages * config.page_size),
        ):
            if room < 1:
                raise UserError(
                    f"the prompt has {prompt} tokens, and {holder} {size} with the answer."
                )
            if request.max_tokens is not None and request.max_tokens > room:
                raise UserError(
                    f"the prompt has {prompt} tokens and max_tokens is "
                    f"{short_repr(request.max_tokens)}, and {holder} {size} in all; max_tokens may "
                    f"be at most {room} here."
                )
        return request.max_tokens or min(in_pages, in_context)
        # [/task 3.3.2 fits]

    def check_queue_limit(self, num_requests: int) -> None:
        """Refuses more requests than may run and wait.

        Raises:
            QueueFullError: see `SchedulerConfig.max_queue`.
        """
        config, present = self.config, len(self._requests)
        if config.max_queue is None:
            return
        allowed = config.max_num_seqs + config.max_queue
        if present + num_requests > allowed:
            raise QueueFullError(
                f"the engine has {present} requests and may have {allowed} (max_num_seqs and "
                f"max_queue), so {num_requests} more cannot be added; try again later."
            )

    def finish(
        self, request: EngineRequest, reason: FinishReason, error: str | None = None
    ) -> None:
        """Ends a request, whatever its state, and frees its pages; no effect if it has ended."""
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
        """Ends a request for its caller; returns False if there is none with that id."""
        request = self._requests.get(request_id)
        if request is not None:
            self.finish(request, "abort")
        return request is not None

    @property
    def has_requests(self) -> bool:
        """Whether any request is not done."""
        return bool(self._requests)

    # ---------------------------------------------------------------- one step

    def schedule(self) -> SchedulerOutput:
        """Plans the next step. It has chunks if there are requests."""
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
        if self.num_preemptions == preempted_before:  # or the pages would go back and forth
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
        """A token for each request that lacks only one, and guesses that are of use."""
        decoding = [
            request
            for request in list(self.running)
            # A request may have been preempted in this loop: for an older one, or for lack of a
            # page for itself.
            if request.state is RequestState.RUNNING
            and request.num_uncomputed == 1
            and self._make_room(request)
        ]
        chunks = []
        spare = self.config.max_num_batched_tokens - len(decoding) * (1 + self.config.num_drafts)
        spare //= 2  # the rest is for prompts, whatever is offered
        for request in decoding:  # all have their token's page now; guesses get what is left
            num_drafts = self._room_for_drafts(request, spare)
            spare -= max(0, num_drafts - self.config.num_drafts)
            start, end = request.num_computed, request.num_tokens
            chunks.append(Chunk(request, start, end, num_drafts, samples=True))
        assert sum(chunk.num_tokens for chunk in chunks) <= self.config.max_num_batched_tokens
        return chunks

    def _prefill(self, request: EngineRequest, budget: int, in_flight: set[PageKey]) -> Chunk:
        """As many of a request's tokens as the budget allows; notes which page it fills next."""
        # [task 3.3.2 prefill]
        end = min(request.num_tokens, request.num_computed + budget)
        in_flight.add((request.last_node, self.pages.tokens_of_page(request, request.num_shared)))
        return Chunk(request, request.num_computed, end, 0, end == request.num_tokens)
        # [/task 3.3.2 prefill]

    def _admit_head(self, in_flight: set[PageKey]) -> bool:
        """Admits the head of the queue, if there is a place and there are pages."""
        # [task 3.3.2 admission]
        if not self.waiting or len(self.running) >= self.config.max_num_seqs:
            return False
        request = self.waiting[0]
        path = self.pages.match(request)
        if self.pages.next_key(request, path) in in_flight:
            return False
        # Each of those that run will soon want another page: without these in reserve, the
        # newcomer would be preempted at once.
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
        """Takes the results of a step.

        Args:
            step: from `schedule`.
            results: for each chunk that samples or is scored, by request id. They have no tokens
                after one that ends the answer.
        """
        for chunk in step.chunks:
            request = chunk.request
            if request.state is not RequestState.RUNNING:
                continue  # aborted while it was computed
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

    # ---------------------------------------------------------------- pages run out

    def _make_room(self, request: EngineRequest) -> bool:
        """Gets pages for all of a request's tokens, from the youngest request if necessary.

        Returns:
            False if the youngest is the request itself, and has been preempted.
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
        """How many guesses are of use to a request and have room without a preemption.

        Args:
            request: decodes a token.
            spare: how many tokens this step has left over, for guesses without a draft model.
        """
        assert request.max_tokens is not None
        draft_tokens = self.config.num_drafts or min(len(request.draft_token_ids), spare)
        # The last token of an answer is never guessed: a step gives one more than it accepts.
        useful = min(draft_tokens, request.max_tokens - request.num_output_tokens - 1)
        if useful <= 0:
            return 0
        room = self.pages.grow_if_possible(request, request.num_tokens + useful)
        return min(useful, room - request.num_tokens)

    def _preempt(self, request: EngineRequest) -> None:
        """Takes a running request's pages; it will compute its tokens again."""
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
        """Asserts that pages have the right owners, and requests the right places."""
        self.pages.check_integrity(self.running)
        for request in self.running:
            assert request.state is RequestState.RUNNING
        for request in self.waiting:
            assert not request.page_ids
            assert request.num_computed == 0
        for what, requests in (("running", self.running), ("waiting", self.waiting)):
            arrivals = [request.arrival_index for request in requests]
            in_order = sorted(arrivals)
            assert arrivals == in_order, f"{what}: {arrivals} instead of first come, first served"
        running, allowed = len(self.running), self.config.max_num_seqs
        assert running <= allowed, f"{running} requests are running instead of at most {allowed}"
        assert len(self.running) + len(self.waiting) == len(self._requests)


def _ids(requests: Iterable[EngineRequest]) -> tuple[str, ...]:
    return tuple(request.request_id for request in requests)
