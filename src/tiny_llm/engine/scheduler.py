"""The scheduler: which tokens are computed next, and which requests have pages.

One step is a list of chunks, each a half-open interval of one request's tokens, `max_batch_tokens`
in all. It is filled in this order, oldest request first:

    1. one token, and guesses, for every request that decodes: nobody's answer stands still
    2. the next chunks of prompts that are being computed
    3. requests from the queue, while there are tokens, places and pages

A request is admitted with pages for all the tokens it has, so only decoding ever asks for more.
When there are none, the prefix cache gives up pages that nobody reads; then the *youngest* running
request gives up its own and goes back to the head of the queue (preemption by recomputation). The
oldest is never preempted, and `add` lets nobody in who would not fit alone, so it always gets to
its end, and then the next one is the oldest: nobody starves.

The queue is first come, first served, with no way past its head. The head waits in one case though
there is room: a running request is computing the very page that it needs next. A step later
that page is in the prefix cache. So of many requests with one prompt, one computes it.

Knows requests and pages; nothing of models, text, time or MLX.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from ..errors import OutOfPagesError, UserError
from .events import (
    ChunkPlan,
    Listener,
    RequestAdded,
    RequestAdmitted,
    RequestEnded,
    RequestPreempted,
    StepScheduled,
    TokensAdded,
)
from .page_manager import PageKey, PageManager
from .request import FinishReason, Request, RequestState
from .step import Chunk, ChunkResult, SchedulerConfig, Step


class Scheduler:
    """Plans steps (`schedule`) and takes in what came of them (`commit`).

    Between the two, anything may be called: a request that is aborted meanwhile is left out.

    Args:
        config: what to keep to.
        listener: is told every event; None tells nobody.

    Attributes:
        pages: who has which.
        waiting: the queue, oldest first; those that were preempted are its head.
        running: those with pages, oldest first.
        num_preemptions: so far.
        num_prompt_tokens: of all requests that were admitted.
        num_cached_tokens: how many of them were in the prefix cache.
    """

    def __init__(self, config: SchedulerConfig, listener: Listener | None = None):
        self.config = config
        self.listener = listener
        self.pages = PageManager(config.num_pages, config.page_size, config.enable_prefix_cache)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self._requests: dict[str, Request] = {}
        self._num_arrived = 0
        self._num_steps = 0

    # ---------------------------------------------------------------- requests come and go

    def add(self, request: Request) -> None:
        """Puts a request at the end of the queue.

        A request without `max_tokens` gets as many as fit.

        Raises:
            UserError: an id that is taken, an empty prompt, or more tokens than the model's context
                or all pages together can ever hold.
        """
        if request.request_id in self._requests:
            raise UserError(f"request_id '{request.request_id}' is taken by a request that runs.")
        request.max_tokens = self._fitting_max_tokens(request)
        request.arrival = self._num_arrived
        self._num_arrived += 1
        self._requests[request.request_id] = request
        self.waiting.append(request)
        if self.listener is not None:
            self.listener(
                RequestAdded(request.request_id, request.num_prompt_tokens, request.max_tokens)
            )

    def _fitting_max_tokens(self, request: Request) -> int:
        """How long the answer may get: as asked for, or as far as there is room.

        Room is bounded by `max_seq_len`, and by the places in all pages: one for each token but the
        last of the answer, which is never computed.

        Raises:
            UserError: see `add`; the sentence says how many tokens there is room for.
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
                    f"the prompt has {prompt} tokens and max_tokens is {request.max_tokens}, and "
                    f"{holder} {size} in all; max_tokens may be at most {room} here."
                )
        return request.max_tokens or min(in_pages, in_context)
        # [/task 3.3.2 fits]

    def finish(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """Ends a request, wherever it is, and frees its pages; no effect on one that has ended."""
        if request.is_done:
            return
        if request.state is RequestState.RUNNING:
            self.pages.release(request)
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        del self._requests[request.request_id]
        request.end(reason, error)
        if self.listener is not None:
            self.listener(
                RequestEnded(request.request_id, reason, request.num_output_tokens, error)
            )

    def abort(self, request_id: str) -> bool:
        """Ends a request because nobody wants it any more; False if there is none of that id."""
        request = self._requests.get(request_id)
        if request is not None:
            self.finish(request, "abort")
        return request is not None

    @property
    def has_requests(self) -> bool:
        """Whether any request is not done."""
        return bool(self._requests)

    # ---------------------------------------------------------------- one step

    def schedule(self) -> Step:
        """Plans the next step. It has no chunks only if there are no requests."""
        # [task 3.3.2 schedule]
        budget = self.config.max_batch_tokens
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
        step = Step(self._num_steps, tuple(chunks))
        # [/task 3.3.2 schedule]
        self._num_steps += 1
        if self.listener is not None and chunks:
            self.listener(self._describe(step))
        return step

    def _schedule_decoding(self) -> list[Chunk]:
        """A token for each request that lacks just one, with guesses as far as they are of use."""
        decoding = [
            request
            for request in list(self.running)
            # Those that an older one of this loop preempted are not running any more; nor is the
            # youngest, if it is itself that lacks a page.
            if request.state is RequestState.RUNNING
            and request.num_uncomputed == 1
            and self._make_room(request)
        ]
        chunks = []
        for request in decoding:  # guesses get the pages that are left then
            num_drafts = self._room_for_drafts(request)
            start, end = request.num_computed, request.num_tokens
            chunks.append(Chunk(request, start, end, num_drafts, samples=True))
        assert sum(chunk.num_tokens for chunk in chunks) <= self.config.max_batch_tokens
        return chunks

    def _prefill(self, request: Request, budget: int, in_flight: set[PageKey]) -> Chunk:
        """As many of a request's tokens as the budget allows; notes which page it fills next."""
        # [task 3.3.2 prefill]
        end = min(request.num_tokens, request.num_computed + budget)
        in_flight.add((request.node, self.pages.tokens_of_page(request, request.num_shared)))
        return Chunk(request, request.num_computed, end, 0, end == request.num_tokens)
        # [/task 3.3.2 prefill]

    def _admit_head(self, in_flight: set[PageKey]) -> bool:
        """Gives the head of the queue its pages and lets it run, if it can."""
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
        if self.listener is not None:
            self.listener(RequestAdmitted(request.request_id, request.num_computed))
        return True

    def commit(self, step: Step, results: Mapping[str, ChunkResult]) -> None:
        """Takes in what a step computed.

        Args:
            step: from `schedule`.
            results: for each chunk that samples, by request id. An answer's tokens after one that
                ends it must have been left out.
        """
        for chunk in step.chunks:
            request = chunk.request
            if request.state is not RequestState.RUNNING:
                continue  # aborted while it was computed
            request.num_computed = chunk.end
            request.num_unguessed = 0
            if chunk.samples:
                result = results[request.request_id]
                assert 1 <= len(result.token_ids) <= 1 + chunk.num_drafts
                request.token_ids.extend(result.token_ids)
                request.num_computed = request.num_tokens - 1
                request.num_unguessed = result.num_unguessed
                self._tell_tokens(request, result)
            self.pages.share_full_pages(request, request.num_computed - request.num_unguessed)

    # ---------------------------------------------------------------- pages run out

    def _make_room(self, request: Request) -> bool:
        """Gets pages for all of a request's tokens, from the youngest if need be.

        Returns:
            False if the youngest is the request itself, which is preempted then.
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

    def _room_for_drafts(self, request: Request) -> int:
        """How many guesses are of use to a request and have room; nobody is preempted for them."""
        assert request.max_tokens is not None
        # The last token of an answer is never guessed: a step gives one more than it accepts.
        useful = min(self.config.num_drafts, request.max_tokens - request.num_output_tokens - 1)
        if useful <= 0:
            return 0
        room = self.pages.grow_if_possible(request, request.num_tokens + useful)
        return min(useful, room - request.num_tokens)

    def _preempt(self, request: Request) -> None:
        """Takes a running request's pages; it computes its tokens again when it is its turn."""
        lost = request.num_computed
        # [task 3.3.4 preempt]
        self.pages.release(request)
        self.running.remove(request)
        request.num_preemptions += 1
        request.state = RequestState.PREEMPTED
        self.waiting.appendleft(request)
        self.num_preemptions += 1
        # [/task 3.3.4 preempt]
        if self.listener is not None:
            self.listener(RequestPreempted(request.request_id, lost))

    # ---------------------------------------------------------------- what others see

    def _describe(self, step: Step) -> StepScheduled:
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

    def _tell_tokens(self, request: Request, result: ChunkResult) -> None:
        if self.listener is not None:
            tokens = tuple(result.token_ids)
            self.listener(TokensAdded(request.request_id, tokens, len(tokens) - 1))

    def check_integrity(self) -> None:
        """Asserts that pages have the owners they should have, and requests their places."""
        self.pages.check_integrity(self.running)
        for request in self.running:
            assert request.state is RequestState.RUNNING
        for request in self.waiting:
            assert not request.page_ids
            assert request.num_computed == 0
        for what, requests in (("running", self.running), ("waiting", self.waiting)):
            arrivals = [request.arrival for request in requests]
            in_order = sorted(arrivals)
            assert arrivals == in_order, f"{what}: {arrivals} instead of first come, first served"
        running, allowed = len(self.running), self.config.max_num_seqs
        assert running <= allowed, f"{running} requests are running instead of at most {allowed}"
        assert len(self.running) + len(self.waiting) == len(self._requests)


def _ids(requests: Iterable[Request]) -> tuple[str, ...]:
    return tuple(request.request_id for request in requests)
