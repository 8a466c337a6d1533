"""Scheduler simulator: virtual clock, and a hash in place of the model.

The "keys and values" of a token are a hash of the token and its prefix. A step writes them into the
allocated slots and verifies those of earlier tokens, which reveals pages that are shared wrongly,
freed too early or written by two requests. Step time is linear in the number of tokens.
"""

import random
from dataclasses import dataclass, field

from tiny_llm import UserError
from tiny_llm.engine.inputs.sampling_params import SamplingParams
from tiny_llm.engine.scheduling.batch import Chunk, ChunkOutput
from tiny_llm.engine.scheduling.config import SchedulerConfig
from tiny_llm.engine.scheduling.request import EngineRequest, RequestState
from tiny_llm.engine.scheduling.scheduler import Scheduler

GREEDY = SamplingParams(temperature=0)
ENDED = {RequestState.FINISHED, RequestState.ABORTED, RequestState.FAILED}
STEP_SECONDS, TOKEN_SECONDS = 1.0, 0.1


@dataclass
class Arrival:
    """One request of a workload.

    Attributes:
        time: arrival time.
        prompt: token ids from a tiny vocabulary, so that prompts share prefixes.
        max_tokens: output limit.
        answer_len: output length at which the model generates an end token.
        abort_at: time of the client's abort, or None.
    """

    time: float
    prompt: list[int]
    max_tokens: int
    answer_len: int
    abort_at: float | None


@dataclass
class Workload:
    """A random configuration and its requests.

    Attributes:
        acceptance: acceptance rate of draft tokens.
        failing_steps: steps whose model call raises.
    """

    config: SchedulerConfig
    arrivals: list[Arrival]
    acceptance: float = 0.5
    failing_steps: frozenset[int] = frozenset()
    seed: int = 0


@dataclass
class Outcome:
    """Totals and outputs of a simulation."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    preemptions: int = 0
    cached_tokens: int = 0
    reasons: dict[str, str] = field(default_factory=dict)
    answers: dict[str, list[int]] = field(default_factory=dict)


def random_workload(rng: random.Random, size: int = 6) -> Workload:
    """A workload of up to `size` requests with short prompts in small pages."""
    page_size = rng.randint(1, 4)
    max_num_seqs = rng.randint(1, 5)
    num_drafts = rng.choice((0, 0, 1, 3))
    config = SchedulerConfig(
        # Requests have up to 28 tokens: usually one fits, rarely all.
        num_pages=rng.randint(2 if rng.random() < 0.1 else 28 // page_size, 40 // page_size),
        page_size=page_size,
        max_num_batched_tokens=max_num_seqs * (1 + num_drafts) + rng.randint(0, 8),
        max_num_seqs=max_num_seqs,
        max_seq_len=12 if rng.random() < 0.1 else 1000,
        num_drafts=num_drafts,
        enable_prefix_caching=rng.random() < 0.8,
    )
    arrivals, time = [], 0.0
    stems = [[rng.randrange(2) for _ in range(8)] for _ in range(2)]
    for _ in range(rng.randint(1, size)):
        stem = stems[rng.randrange(2)][: rng.randint(0, 8)]
        prompt = stem + [rng.randrange(2) for _ in range(rng.randint(0, 4))]
        abort_at = time + rng.uniform(0, 20) if rng.random() < 0.15 else None
        arrivals.append(Arrival(time, prompt, rng.randint(1, 16), rng.randint(1, 16), abort_at))
        time += rng.choice((0, 0, 1, 4))
    failing = frozenset({rng.randint(0, 9)}) if rng.random() < 0.1 else frozenset()
    return Workload(config, arrivals, rng.random(), failing, rng.randrange(2**30))


def next_token(prefix: int, length: int) -> int:
    """The model: an arbitrary function of the prefix."""
    return (prefix >> 7) * 31 + length & 1


def fold(prefix: int, token: int) -> int:
    """Extends the hash of a prefix by a token."""
    return (prefix * 1_000_003 + token + 1) & 0xFFFFFFFFFFFF


class Simulation:
    """Runs a workload and asserts the invariants at every step.

    Args:
        workload: configuration and requests.
        check_every: steps between calls of `check_integrity`.
    """

    def __init__(self, workload: Workload, check_every: int = 1, listener=None):
        self.workload = workload
        self.config = workload.config
        self.scheduler = Scheduler(workload.config, listener)
        self.outcome = Outcome()
        self.now = 0.0
        self.requests: dict[str, EngineRequest] = {}
        self._rng = random.Random(workload.seed)
        self._check_every = check_every
        self._slots = [-1] * (self.config.num_pages * self.config.page_size)
        self._answer_lens: dict[str, int] = {}
        self._coming = sorted(enumerate(workload.arrivals), key=lambda pair: pair[1].time)[::-1]
        self._aborts = sorted(
            (one.abort_at, str(index))
            for index, one in enumerate(workload.arrivals)
            if one.abort_at is not None
        )[::-1]

    def run(self) -> Outcome:
        """Runs until all requests have ended."""
        self._arrive()
        while self._coming or self.scheduler.has_requests:
            if not self.scheduler.has_requests:
                self.now = max(self.now, self._coming[-1][1].time)
                self._arrive()
                continue
            self._step()
            self._arrive()
        self._check_end()
        return self.outcome

    def _arrive(self) -> None:
        while self._coming and self._coming[-1][1].time <= self.now:
            index, one = self._coming.pop()
            request = EngineRequest(str(index), one.prompt, GREEDY, one.max_tokens)
            try:
                self.scheduler.add(request)
            except UserError:
                self.outcome.reasons[str(index)] = "refused"
                self._assert_never_fits(one)
                continue
            self.requests[str(index)] = request
            self._answer_lens[str(index)] = one.answer_len

    def _assert_never_fits(self, one: Arrival) -> None:
        total = len(one.prompt) + one.max_tokens
        slots = self.config.num_pages * self.config.page_size
        assert not one.prompt or total > self.config.max_seq_len or total - 1 > slots

    def _abort_due(self, until: float) -> None:
        while self._aborts and self._aborts[-1][0] <= until:
            self.scheduler.abort(self._aborts.pop()[1])

    def _step(self) -> None:
        scheduler, outcome = self.scheduler, self.outcome
        oldest = min(
            (one for one in self.requests.values() if not one.is_done),
            key=lambda r: r.arrival_index,
        )
        step = scheduler.schedule()
        assert step.chunks, "empty step with unfinished requests"
        assert step.num_tokens <= self.config.max_num_batched_tokens, (
            "the step exceeds its token budget"
        )
        assert any(chunk.request is oldest for chunk in step.chunks), f"{oldest} makes no progress"
        failed = step.index in self.workload.failing_steps
        if failed:
            for chunk in step.chunks:
                scheduler.finish(chunk.request, "error", "the model failed.")
        else:
            results = {chunk.request.request_id: self._compute(chunk) for chunk in step.chunks}
            self.now += STEP_SECONDS + TOKEN_SECONDS * step.num_tokens
            self._abort_due(self.now)  # while the step is in flight
            scheduler.update_from_output(
                step, {key: one for key, one in results.items() if one is not None}
            )
            self._end_answers(step.chunks)
        outcome.steps += 1
        outcome.tokens += step.num_tokens
        used = scheduler.pages.allocator.num_used
        assert used <= self.config.num_pages
        if outcome.steps % self._check_every == 0:
            scheduler.check_integrity()

    def _compute(self, chunk: Chunk) -> ChunkOutput | None:
        """Verifies earlier slots, writes the chunk's and returns the next tokens."""
        request, size = chunk.request, self.config.page_size
        assert chunk.start == request.num_computed
        assert chunk.start < chunk.end <= request.num_tokens
        assert len(request.page_ids) * size >= chunk.end + chunk.num_drafts, (
            "too few pages for the chunk"
        )
        prefix, tokens, slots = 0, request.token_ids, self._slots
        for position in range(chunk.end):
            slot = request.page_ids[position // size] * size + position % size
            prefix = fold(prefix, tokens[position])
            if position < chunk.start:
                assert slots[slot] == prefix, f"{request} reads a slot of another prefix"
            else:
                assert position // size >= request.num_shared, "a shared page is overwritten"
                slots[slot] = prefix
        if not chunk.samples:
            return None
        new, end = [], chunk.end
        for index in range(chunk.num_drafts + 1):
            token = next_token(prefix, end)
            new.append(token)
            ends = request.num_output_tokens + len(new) >= min(
                request.max_tokens, self._answer_lens[request.request_id]
            )
            if ends or index == chunk.num_drafts:
                break
            is_accepted = self._rng.random() < self.workload.acceptance
            slot = request.page_ids[end // size] * size + end % size
            prefix = fold(prefix, token if is_accepted else 1 - token)
            slots[slot] = prefix  # rejected draft tokens leave stale keys
            if not is_accepted:
                break
            end += 1
        # If all draft tokens are accepted, the draft model has not computed the last one.
        return ChunkOutput(new, num_draft_uncomputed=int(0 < chunk.num_drafts == len(new) - 1))

    def _end_answers(self, chunks: tuple[Chunk, ...]) -> None:
        for chunk in chunks:
            request = chunk.request
            if request.is_done or not chunk.samples:
                continue
            if request.num_output_tokens >= self._answer_lens[request.request_id]:
                self.scheduler.finish(request, "stop")
            elif request.num_output_tokens >= request.max_tokens:
                self.scheduler.finish(request, "length")

    def _check_end(self) -> None:
        scheduler, outcome = self.scheduler, self.outcome
        scheduler.check_integrity()
        assert not scheduler.running
        assert not scheduler.waiting
        held = scheduler.pages.allocator.num_used
        assert held == scheduler.pages.cache.num_pages, "pages leaked"
        for request_id, request in self.requests.items():
            assert request.state in ENDED
            outcome.reasons[request_id] = str(request.finish_reason)
            outcome.answers[request_id] = request.output_token_ids
            outcome.cached_tokens += request.num_cached_tokens
        outcome.preemptions = scheduler.num_preemptions
        outcome.seconds = self.now
        assert len(outcome.reasons) == len(self.workload.arrivals), "a request has no outcome"


def answer_alone(arrival: Arrival) -> list[int]:
    """The oracle: the output of a request that runs alone."""
    prefix, tokens = 0, list(arrival.prompt)
    for token in tokens:
        prefix = fold(prefix, token)
    output: list[int] = []
    while len(output) < min(arrival.max_tokens, arrival.answer_len):
        output.append(next_token(prefix, len(tokens) + len(output)))
        prefix = fold(prefix, output[-1])
    return output
