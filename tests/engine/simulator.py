"""Scheduler simulator: a virtual clock, and a hash instead of a model.

The "keys and values" of a token are a hash of the token and its prefix. Each step writes hashes
into the allocated slots and verifies the hashes of earlier tokens, which detects pages that are
shared by mistake, freed too early or written by two requests. With a sliding window, only tokens
inside it are verified. A recurrent state is a hash of all tokens so far: with state slots, each
step continues from the hash in its read slot. Step time is linear in the number of tokens and in
their positions.
"""

import random
from collections import Counter
from dataclasses import asdict, dataclass, field, replace

from tiny_llm import UserError
from tiny_llm.engine.inputs.sampling_params import SamplingParams
from tiny_llm.engine.scheduling.config import KvGroup, SchedulerConfig
from tiny_llm.engine.scheduling.fair_scheduler import LONG_STEP_INTERVAL, FairScheduler
from tiny_llm.engine.scheduling.request import (
    Chunk,
    ChunkOutput,
    EngineRequest,
    RequestState,
    SchedulerOutput,
)
from tiny_llm.engine.scheduling.scheduler import Scheduler

GREEDY = SamplingParams(temperature=0)
# Virtual time per step, per token of the step, and per key that a token attends to.
STEP_SECONDS, TOKEN_SECONDS, KEY_SECONDS = 1.0, 0.1, 0.01


@dataclass
class Arrival:
    """One request of a workload.

    Attributes:
        prompt: token ids from a tiny vocabulary, so that prompts share prefixes.
        answer_len: output length at which the model generates an end token.
        adapter: index of the request's adapter, or −1 for none. Each adapter has its own outputs
            and cached prefixes.
    """

    time: float
    prompt: list[int]
    max_tokens: int
    answer_len: int
    abort_at: float | None
    adapter: int = -1


@dataclass
class Workload:
    """A random configuration and its requests.

    Attributes:
        acceptance: acceptance rate of draft tokens.
        failing_steps: steps whose model call raises.
        is_fair: whether the scheduler is a `FairScheduler`.
        step_time_target, min_chunk: see `FairScheduler`.
        shortages: fraction of steps that are followed by a memory shortage, which evicts cached
            prefixes and clears free pages and state slots.
    """

    config: SchedulerConfig
    arrivals: list[Arrival]
    acceptance: float = 0.5
    failing_steps: frozenset[int] = frozenset()
    seed: int = 0
    is_fair: bool = False
    step_time_target: float | None = None
    min_chunk: int = 1
    shortages: float = 0.0


@dataclass
class Outcome:
    steps: int = 0
    preemptions: int = 0
    overtaken: int = 0
    long_steps: int = 0
    cached_tokens: int = 0
    state_writes: int = 0
    freed_pages: int = 0
    evictions: int = 0
    released_pages: int = 0
    exceeds_memory: bool = False  # a request has more tokens than the pages hold
    reasons: dict[str, str] = field(default_factory=dict)
    answers: dict[str, list[int]] = field(default_factory=dict)

    @property
    def totals(self) -> Counter[str]:
        """Counts by name, including finish reasons."""
        counts = {name: n for name, n in asdict(self).items() if isinstance(n, int)}
        return Counter(self.reasons.values()) + Counter(counts)


def random_workload(rng: random.Random, size: int = 6, num_state_slots: int = 0) -> Workload:
    """Random workload of up to `size` requests, short prompts and small pages."""
    page_size = rng.randint(1, 4)
    max_num_seqs = rng.randint(1, 5)
    num_drafts = rng.choice((0, 0, 1, 3))
    config = SchedulerConfig(
        # Requests have up to 28 tokens, so one usually fits into memory, but rarely all.
        num_pages=rng.randint(2 if rng.random() < 0.1 else 28 // page_size, 40 // page_size),
        page_size=page_size,
        max_num_batched_tokens=max_num_seqs * (1 + num_drafts) + rng.randint(0, 8),
        max_num_seqs=max_num_seqs,
        max_seq_len=12 if rng.random() < 0.1 else 1000,
        num_drafts=num_drafts,
        enable_prefix_caching=rng.random() < 0.8,
        num_state_slots=num_state_slots,
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
    workload = Workload(config, arrivals, rng.random(), failing, rng.randrange(2**30))
    if workload.seed % 4 == 0:
        adapters = random.Random(workload.seed)
        for arrival in arrivals:
            arrival.adapter = adapters.randint(-1, 1)
    return workload


def random_groups(rng: random.Random) -> tuple[KvGroup, ...]:
    """Two or three KV cache groups, mostly one of them with full attention."""
    windows = rng.sample(range(1, 9), rng.randint(2, 3))
    if rng.random() < 0.8:
        windows[0] = 0
    windows.sort(key=lambda window: (window > 0, -window))
    return tuple(KvGroup(window, rng.randint(1, 3)) for window in windows)


def with_groups(rng: random.Random, workload: Workload, groups: tuple[KvGroup, ...]) -> Workload:
    """Adds KV cache groups, often with less memory than a request needs."""
    config = replace(workload.config, kv_groups=groups)
    config = replace(config, max_num_batched_tokens=config.max_num_seqs * (1 + config.num_drafts))
    num_tokens = rng.randint(12, 28)
    if all(group.window for group in groups):
        num_tokens = config.max_seq_len  # more than any request
    num_pages = config.pages_for(num_tokens) + rng.choice((-1, 0, 0, 0, 1, 2))
    return replace(workload, config=replace(config, num_pages=max(1, num_pages)))


def next_token(prefix: int, length: int) -> int:
    """Stands in for the model: the next token, given a prefix's hash and length."""
    return (prefix >> 7) * 31 + length & 1


def empty_prefix(adapter: int) -> int:
    return adapter + 1 << 7


def fold(prefix: int, token: int) -> int:
    return (prefix * 1_000_003 + token + 1) & 0xFFFFFFFFFFFF


class Simulation:
    """Runs a workload and asserts invariants at every step."""

    def __init__(self, workload: Workload, check_every: int = 1, listener=None):
        self.workload = workload
        self.config = workload.config
        self.scheduler: Scheduler = Scheduler(workload.config, listener)
        if workload.is_fair:
            options = workload.step_time_target, workload.min_chunk
            self.scheduler = FairScheduler(workload.config, listener, *options)
        self.outcome = Outcome()
        self.now = 0.0
        self.requests: dict[str, EngineRequest] = {}
        self._long_step, self._long_step_end, self._long_step_seconds = -1000, 0.0, 0.0
        self._num_deferred = 0  # consecutive steps without the oldest request
        self._rng = random.Random(workload.seed)
        self._shortage_rng = random.Random(workload.seed + 1)
        self._check_every = check_every
        self._slots = [-1] * (self.config.num_pages * self.config.page_size)
        self._states = [-1] * self.config.num_state_slots
        self._draft_states = [-1] * self.config.num_state_slots
        self._answer_lens: dict[str, int] = {}
        self._future_arrivals = sorted(enumerate(workload.arrivals), key=lambda pair: pair[1].time)[
            ::-1
        ]
        self._aborts = sorted(
            (arrival.abort_at, str(index))
            for index, arrival in enumerate(workload.arrivals)
            if arrival.abort_at is not None
        )[::-1]

    def run(self) -> Outcome:
        self._arrive()
        while self._future_arrivals or self.scheduler.has_requests:
            if not self.scheduler.has_requests:
                self.now = max(self.now, self._future_arrivals[-1][1].time)
                self._arrive()
                continue
            self._step()
            if self._shortage_rng.random() < self.workload.shortages:
                self._release_memory()
            self._arrive()
        self._check_final_state()
        return self.outcome

    def _arrive(self) -> None:
        while self._future_arrivals and self._future_arrivals[-1][1].time <= self.now:
            index, arrival = self._future_arrivals.pop()
            request = EngineRequest(
                str(index), arrival.prompt, GREEDY, arrival.max_tokens, adapter=arrival.adapter
            )
            try:
                self.scheduler.add(request)
            except UserError:
                self.outcome.reasons[str(index)] = "rejected"
                self._assert_never_fits(arrival)
                continue
            self.requests[str(index)] = request
            self._answer_lens[str(index)] = arrival.answer_len

    def _assert_never_fits(self, arrival: Arrival) -> None:
        total = len(arrival.prompt) + arrival.max_tokens
        slots = self.config.max_tokens_in_pages
        if self.config.has_windows and self.config.pages_for(total - 1) <= self.config.num_pages:
            slots = total
        assert not arrival.prompt or total > self.config.max_seq_len or total - 1 > slots

    def _abort_due(self, until: float) -> None:
        while self._aborts and self._aborts[-1][0] <= until:
            request = self.requests.get(self._aborts.pop()[1])
            if request is not None:  # otherwise it was rejected
                self.scheduler.finish(request, "abort")

    def _step(self) -> None:
        scheduler, outcome = self.scheduler, self.outcome
        oldest = min(
            (request for request in self.requests.values() if not request.is_done),
            key=lambda request: request.arrival_index,
        )
        self._overtaken = {request: request.num_overtaken for request in self.requests.values()}
        self._running = list(scheduler.running)
        step = scheduler.schedule()
        assert step.chunks, "empty step with unfinished requests"
        assert step.num_tokens <= self.config.max_num_batched_tokens, (
            "the step exceeds its token budget"
        )
        self._check_progress(oldest, step)
        self._check_target(step)
        self._check_state_slots(step.chunks)
        self.now += self.seconds(step)
        failed = step.index in self.workload.failing_steps
        if failed:
            for chunk in step.chunks:
                scheduler.finish(chunk.request, "error", "the model failed.")
        else:
            results = {chunk.request.request_id: self._compute(chunk) for chunk in step.chunks}
            self._abort_due(self.now)  # while the step is in flight
            scheduler.update_from_output(
                step, {key: output for key, output in results.items() if output is not None}
            )
            self._finish_requests(step.chunks)
        scheduler.record_step_time(step, self.seconds(step))
        outcome.steps += 1
        assert scheduler.pages.allocator.num_used <= self.config.num_pages
        if outcome.steps % self._check_every == 0:
            scheduler.check_integrity()

    def _release_memory(self) -> None:
        """Evicts cached pages and clears all free pages and slots, like `EngineCore`."""
        pages, size = self.scheduler.pages, self.config.page_size
        self.outcome.evictions += pages.evict_half()
        free_pages, free_slots = pages.free_rows()
        for page in free_pages:
            self._slots[page * size : (page + 1) * size] = [-1] * size
        for slot in free_slots:
            self._states[slot] = self._draft_states[slot] = -1
        self.outcome.released_pages += len(free_pages)
        self.scheduler.check_integrity()

    def _check_progress(self, oldest: EngineRequest, step: SchedulerOutput) -> None:
        """Asserts that the oldest request progresses or is overtaken within bounds."""
        for request in self.requests.values():
            limit = request.num_prompt_tokens + self.config.max_num_batched_tokens
            assert request.num_overtaken < limit, f"{request} is overtaken without bound"
        computed = [chunk.request for chunk in step.chunks]
        if oldest in computed:
            self._num_deferred = 0
            return
        assert self.workload.is_fair, f"{oldest} makes no progress"
        if oldest.num_overtaken < oldest.num_prompt_tokens:
            self.outcome.overtaken += 1
        # The request was not overtaken in this step, so it was protected before the step.
        elif oldest.num_overtaken == self._overtaken.get(oldest):
            if self.workload.step_time_target is None:
                assert oldest.state is not RequestState.RUNNING, f"{oldest} makes no progress"
            elif oldest.state is RequestState.RUNNING:
                self._num_deferred += 1
                assert self._num_deferred <= LONG_STEP_INTERVAL, f"{oldest} makes no progress"
            admitted = [request for request in computed if request not in self._running]
            assert not admitted, f"{admitted} are admitted before {oldest}"

    @staticmethod
    def seconds(step: SchedulerOutput) -> float:
        keys = sum(chunk.num_tokens * chunk.end for chunk in step.chunks)
        return STEP_SECONDS + TOKEN_SECONDS * step.num_tokens + KEY_SECONDS * keys

    def _check_target(self, step: SchedulerOutput) -> None:
        """Asserts that prefill meets the step time target, except in long steps."""
        target, scheduler = self.workload.step_time_target, self.scheduler
        decoding = [
            chunk
            for chunk in step.chunks
            if chunk.request in self._running and chunk.request.num_tokens == chunk.start + 1
        ]
        prompts = [chunk for chunk in step.chunks if chunk not in decoding]
        if target is None or not decoding or not prompts:
            return
        assert isinstance(scheduler, FairScheduler)
        costs = [
            chunk.num_tokens * scheduler.costs.seconds_per_token(chunk.end) for chunk in prompts
        ]
        assert sum(costs[:-1]) <= target, "a chunk was added to a full step"
        if prompts[0].request not in self._running:
            # The prefix cache may have changed since the chunk's position was estimated, so the
            # estimated cost is unknown.
            return
        cost = scheduler.costs.seconds_per_token(prompts[0].start + self.workload.min_chunk)
        if min(prompts[0].num_tokens, self.workload.min_chunk) * cost > target:
            between = step.index - self._long_step - 1
            is_over = self.now - self._long_step_end >= self._long_step_seconds
            assert between >= LONG_STEP_INTERVAL or is_over, "long steps are too frequent"
            self._long_step, self._long_step_seconds = step.index, self.seconds(step)
            # `now` is still the start of the step.
            self._long_step_end = self.now + self._long_step_seconds
            self.outcome.long_steps += 1

    def _compute(self, chunk: Chunk) -> ChunkOutput | None:
        """Verifies earlier slots and writes the chunk's; returns its sampled tokens."""
        request, size = chunk.request, self.config.page_size
        assert chunk.start == request.num_computed
        assert chunk.start < chunk.end <= request.num_tokens
        assert self.scheduler.pages.capacity(request) >= chunk.end + chunk.num_drafts, (
            "too few pages for the chunk"
        )
        prefix, tokens, slots = empty_prefix(request.adapter), request.token_ids, self._slots
        states = []
        draft_start = chunk.start - request.num_draft_uncomputed
        for position in range(chunk.end):
            if position == draft_start and self._states and self.config.num_drafts and position > 0:
                assert self._draft_states[chunk.draft_state_read_slot] == prefix, (
                    f"{request}'s draft model reads the state of another prefix"
                )
            if position == chunk.start and self._states and position > 0:
                assert self._states[chunk.state_read_slot] == prefix, (
                    f"{request} reads the state of another prefix"
                )
            prefix = fold(prefix, tokens[position])
            for page, window in self._pages_at(request, position):
                if window and position <= draft_start - window:
                    self.outcome.freed_pages += page < 0 and position % size == 0
                    continue
                assert page >= 0, f"{request} has no page for a token in its window"
                slot = page * size + position % size
                if position < chunk.start:
                    assert slots[slot] == prefix, f"{request} reads a slot of another prefix"
                else:
                    assert position // size >= request.num_shared, "a shared page is overwritten"
                    slots[slot] = prefix
            if position >= chunk.start:
                states.append(prefix)
        if not chunk.samples:
            self._write_states(chunk, states)
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
            prefix = fold(prefix, token if is_accepted else 1 - token)
            for page, _ in self._pages_at(request, end):
                slots[page * size + end % size] = prefix  # rejected draft tokens leave stale keys
            states.append(prefix)
            if not is_accepted:
                break
            end += 1
        self._write_states(chunk, states)
        # When all draft tokens are accepted, the draft model has not yet computed the last one.
        return ChunkOutput(new, num_draft_uncomputed=int(0 < chunk.num_drafts == len(new) - 1))

    def _pages_at(self, request: EngineRequest, position: int) -> list[tuple[int, int]]:
        """(page, window of its group) of each of the pages that hold a token."""
        first = position // self.config.page_size * self.config.block_pages
        pages = iter(request.page_ids[first : first + self.config.block_pages])
        groups = self.config.kv_groups
        return [(next(pages), group.window) for group in groups for _ in range(group.num_pages)]

    def _check_state_slots(self, chunks: tuple[Chunk, ...]) -> None:
        """Asserts that a written slot has one writer and no other chunk reads it."""
        if not self._states:
            assert not any(chunk.state_writes for chunk in chunks)
            return
        writers: dict[int, Chunk] = {}
        for chunk in chunks:
            assert (chunk.state_read_slot < 0) == (chunk.start == 0)
            indices = [index for index, _ in chunk.state_writes]
            assert len(set(indices)) == len(indices)
            assert 0 <= min(indices) <= max(indices) < chunk.num_tokens
            for _, slot in chunk.state_writes:
                assert slot not in writers, f"slot {slot} is written twice"
                writers[slot] = chunk
        for chunk in chunks:
            writer = writers.get(chunk.state_read_slot, chunk)
            assert writer is chunk, f"{chunk.request} reads a slot that another chunk writes"

    def _write_states(self, chunk: Chunk, states: list[int]) -> None:
        """Stores recurrent states, with an arbitrary value for rejected draft tokens."""
        last = chunk.num_tokens - 1 if chunk.num_drafts else chunk.num_tokens
        for index, slot in chunk.state_writes:
            self._states[slot] = states[index] if index < len(states) else -2
            if index < last:  # the draft model has not computed the last draft token
                self._draft_states[slot] = self._states[slot]
        self.outcome.state_writes += len(chunk.state_writes)

    def _finish_requests(self, chunks: tuple[Chunk, ...]) -> None:
        for chunk in chunks:
            request = chunk.request
            if request.is_done or not chunk.samples:
                continue
            if request.num_output_tokens >= self._answer_lens[request.request_id]:
                self.scheduler.finish(request, "stop")
            elif request.num_output_tokens >= request.max_tokens:
                self.scheduler.finish(request, "length")
            elif self._states and not self.config.num_drafts:
                self.scheduler.update_draft_tokens(request, [0] * self._rng.randint(0, 3))

    def _check_final_state(self) -> None:
        scheduler, outcome = self.scheduler, self.outcome
        scheduler.check_integrity()
        assert not scheduler.running
        assert not scheduler.waiting
        used = scheduler.pages.allocator.num_used
        assert used == scheduler.pages.cache.num_pages, "pages leaked"
        if scheduler.pages.states is not None:
            states = scheduler.pages.states.counts()
            assert states.used == 0, "state slots leaked"
            assert self.config.enable_prefix_caching or states.checkpoints == 0
        for request_id, request in self.requests.items():
            assert request.state is RequestState.FINISHED
            outcome.reasons[request_id] = str(request.finish_reason)
            outcome.answers[request_id] = request.token_ids[request.num_prompt_tokens :]
            outcome.cached_tokens += request.num_cached_tokens
        config, arrivals = self.config, self.workload.arrivals
        longest = max((len(each.prompt) + each.max_tokens for each in arrivals), default=0)
        tokens_in_pages = config.num_pages // config.block_pages * config.page_size
        outcome.exceeds_memory = longest > tokens_in_pages
        outcome.preemptions = scheduler.num_preemptions
        assert len(outcome.reasons) == len(self.workload.arrivals), "a request has no outcome"


def answer_alone(arrival: Arrival) -> list[int]:
    """Oracle: the output of a request served alone."""
    prefix, tokens = empty_prefix(arrival.adapter), list(arrival.prompt)
    for token in tokens:
        prefix = fold(prefix, token)
    output: list[int] = []
    while len(output) < min(arrival.max_tokens, arrival.answer_len):
        output.append(next_token(prefix, len(tokens) + len(output)))
        prefix = fold(prefix, output[-1])
    return output


def run_and_compare(workload: Workload, check_every: int = 1) -> Outcome:
    """Runs a workload; compares each output with that of the request alone."""
    outcome = Simulation(workload, check_every).run()
    for name, reason in outcome.reasons.items():
        assert reason in ("stop", "length", "abort", "error", "rejected")
        expected, answer = answer_alone(workload.arrivals[int(name)]), outcome.answers.get(name, [])
        if reason not in ("stop", "length"):
            expected = expected[: len(answer)]
        assert answer == expected, (
            f"request {name}: expected {expected}, as when served alone, got {answer}; {workload}"
        )
    return outcome
