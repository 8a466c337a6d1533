"""FairScheduler: shortest prompt first, with bounded overtaking.

Extends the first-come, first-served `Scheduler` in two ways:

- Prompts are computed in order of their remaining tokens, shortest first, and a short prompt may be
  admitted before a longer one ahead of it in the queue. A request becomes *protected* once as many
  prompt tokens have overtaken it as its own prompt has: it then takes precedence over all later
  requests, and none of them is admitted before it.
- A step time target limits the prompt tokens in steps with decoding requests, and thus the
  inter-token latency of streams. Steps that complete a prompt are limited as well, because its
  first output token waits for the end of the step. A prompt token's cost grows with its position,
  so it is measured by position (`PromptCosts`): a step has room for a short chat prompt, but only
  for a few tokens at the end of a long one.

Small chunks are inefficient: each step rereads the weights, and all keys and values of the prompt
so far. If fewer than `MIN_CHUNK` tokens fit the target, the prompt is computed in *long steps*,
each `LONG_STEP_FACTOR` times the planned duration. The steps after a long one stay within the
target, so most of them only decode. The next long step may start after `LONG_STEP_INTERVAL` steps,
or once these steps have taken as long as the last long one. Therefore, 95 % of inter-token
latencies meet the target if decoding is fast, and prompts get at least half of the compute time.

No starvation: overtaking delays a request by at most its own prompt's length. The request is then
protected and ordered as in `Scheduler`, so the argument in `scheduler.py` applies, except that up
to `LONG_STEP_INTERVAL` steps may pass between two of its chunks. Output tokens do not depend on the
schedule.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice
from operator import attrgetter

from .config import Listener, SchedulerConfig
from .page_manager import PageKey
from .request import Chunk, EngineRequest, RequestState, SchedulerOutput
from .scheduler import Scheduler

MAX_CANDIDATES = 32  # queued requests considered in a step, oldest first
MIN_CHUNK = 32  # minimum chunk in prompt tokens; smaller chunks reread weights and keys too often
TARGET_MARGIN = 0.9  # planned duration of a step, in multiples of the step time target
LONG_STEP_FACTOR = 10  # duration of a long step, in multiples of the planned duration
# Steps before the next long step: 1 in 25 inter-token latencies is long if decoding is fast.
LONG_STEP_INTERVAL = 24
NUM_SAMPLES = 5  # measured costs kept per range of positions

arrival_order = attrgetter("arrival_index")


class PromptCosts:
    """Measured seconds per prompt token, by the token's position.

    Positions from 2ⁿ⁻¹ to 2ⁿ − 1 share one cost: the second highest of the last `NUM_SAMPLES`, so
    that most steps take no longer than estimated, and a single slow step changes nothing.
    """

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}  # by n

    def record(self, position: int, num_tokens: int, seconds: float) -> None:
        """Records the duration of a step whose chunk ends at `position`."""
        samples = self._samples.setdefault(position.bit_length(), deque(maxlen=NUM_SAMPLES))
        samples.append(seconds / num_tokens)

    def seconds_per_token(self, position: int) -> float:
        """Estimates a token's cost; falls back to the nearest measured position."""
        if not self._samples:
            return 0.0
        key = position.bit_length()
        samples = self._samples[min(self._samples, key=lambda other: abs(other - key))]
        return sorted(samples)[-2:][0]


class FairScheduler(Scheduler):
    """Scheduler with bounded overtaking and a step time target.

    Args:
        step_time_target: target duration of steps with decoding requests, in seconds; None for no
            limit on their prompt tokens.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        listener: Listener | None = None,
        step_time_target: float | None = None,
        min_chunk: int = MIN_CHUNK,
    ):
        super().__init__(config, listener)
        self.costs = PromptCosts()
        self._planned_seconds = (
            None if step_time_target is None else TARGET_MARGIN * step_time_target
        )
        self._min_chunk = min_chunk
        self._long_step = -1  # number of the last long step; −1 before the first
        # The next long step is allowed after this many steps or seconds, whichever comes first.
        self._steps_between, self._seconds_between = 0, 0.0

    def add(self, request: EngineRequest) -> None:
        super().add(request)
        request.num_uncached = self._num_uncached(request)

    def schedule(self) -> SchedulerOutput:
        preempted_before = self.num_preemptions
        chunks = self._schedule_decoding()
        budget = self.config.max_num_batched_tokens - sum(chunk.num_tokens for chunk in chunks)
        may_admit = self.num_preemptions == preempted_before
        chunks += self._schedule_prompts(
            budget, may_admit, self._planned_seconds if chunks else None
        )
        return self._finish_plan(SchedulerOutput(self._num_steps, tuple(chunks)))

    def record_step_time(self, step: SchedulerOutput, seconds: float) -> None:
        """Updates the prompt costs and the interval before the next long step.

        Costs come from steps with a single prompt chunk of at least `min_chunk` tokens, because it
        dominates their duration.
        """
        chunks = [chunk for chunk in step.chunks if chunk.end - chunk.start > 1]
        if len(chunks) == 1 and chunks[0].num_tokens >= self._min_chunk:
            self.costs.record(chunks[0].end, chunks[0].num_tokens, seconds)
        self._steps_between -= 1
        self._seconds_between -= seconds
        if step.index == self._long_step:
            self._steps_between, self._seconds_between = LONG_STEP_INTERVAL, seconds

    def _schedule_prompts(
        self, budget: int, may_admit: bool, seconds: float | None = None
    ) -> list[Chunk]:
        """Returns prompt chunks in priority order.

        Only a long step may exceed `seconds`, the maximum estimated duration; None for no limit.
        """
        candidates = [request for request in self.running if request.num_uncomputed > 1]
        in_flight: set[PageKey] = {
            (request.last_node, self.pages.tokens_of_page(request, request.num_shared))
            for request in candidates
        }
        if may_admit:
            candidates += islice(self.waiting, MAX_CANDIDATES)
        candidates.sort(key=_priority, reverse=True)
        chunks: list[Chunk] = []
        barrier: int | None = None  # arrival index of a protected request that does not fit
        while budget > 0 and candidates:
            request = candidates.pop()
            limit = budget
            if seconds is not None:
                is_long = not chunks and min(self._steps_between, self._seconds_between) <= 0
                limit = min(budget, self._num_fitting(request, seconds, is_long))
            is_queued = request.state is not RequestState.RUNNING
            if is_queued and barrier is not None and request.arrival_index > barrier:
                continue
            if limit == 0 or (is_queued and not self._admit(request, in_flight)):
                if is_queued and _is_protected(request) and barrier is None:
                    barrier = request.arrival_index
                continue
            if request.num_loading:
                continue
            chunks.append(self._prefill(request, limit, in_flight))
            num_tokens = chunks[-1].num_tokens
            budget -= num_tokens
            if chunks[-1].samples and seconds is None:
                # The chunk completes its prompt: limit the step even if no request is decoding.
                seconds = self._planned_seconds
            if seconds is not None:
                seconds -= num_tokens * self.costs.seconds_per_token(chunks[-1].end)
            self._count_overtaking(request, num_tokens)
        return chunks

    def _num_fitting(self, request: EngineRequest, seconds: float, may_be_long: bool) -> int:
        """Returns how many of a request's prompt tokens fit in `seconds`.

        If too few fit and `may_be_long`, starts a long step.
        """
        num_left = _num_uncomputed(request)
        cost = self.costs.seconds_per_token(request.num_tokens - num_left + self._min_chunk)
        required = min(num_left, self._min_chunk)
        if required * cost > max(seconds, 0):
            if not may_be_long:
                return 0
            self._long_step = self._num_steps
            seconds *= LONG_STEP_FACTOR
        return max(required, num_left if num_left * cost <= seconds else int(seconds / cost))

    def _admit(self, request: EngineRequest, in_flight: set[PageKey]) -> bool:
        """Admits a request from any queue position; returns False if it does not fit."""
        self.waiting.remove(request)
        self.waiting.appendleft(request)
        admitted = self._admit_one(in_flight)
        self._sort()
        return admitted

    def _preempt(self, request: EngineRequest) -> None:
        super()._preempt(request)
        request.num_uncached = self._num_uncached(request)
        self._sort()

    def _sort(self) -> None:
        self.running.sort(key=arrival_order)
        self.waiting = deque(sorted(self.waiting, key=arrival_order))

    def _count_overtaking(self, request: EngineRequest, num_tokens: int) -> None:
        for other in [*_older(self.running, request), *_older(self.waiting, request)]:
            # Later chunks do not overtake a protected request: it has priority over them, and if it
            # is still in the queue, it waits for memory.
            if other.num_uncomputed > 1 and not _is_protected(other):
                other.num_overtaken += num_tokens

    def _num_uncached(self, request: EngineRequest) -> int:
        return request.num_tokens - len(self.pages.match(request)) * self.config.page_size


def _is_protected(request: EngineRequest) -> bool:
    return request.num_overtaken >= request.num_prompt_tokens


def _priority(request: EngineRequest) -> tuple[int, int]:
    """Sort key: protected requests by arrival, then others by remaining tokens."""
    if _is_protected(request):
        return -1, request.arrival_index
    return _num_uncomputed(request), request.arrival_index


def _num_uncomputed(request: EngineRequest) -> int:
    """Number of tokens to compute, without a queued request's prefix cache hits."""
    is_running = request.state is RequestState.RUNNING
    return request.num_uncomputed if is_running else request.num_uncached


def _older(requests: Iterable[EngineRequest], request: EngineRequest) -> Iterable[EngineRequest]:
    """Yields the `requests` (sorted by arrival) that arrived before `request`."""
    for other in requests:
        if other.arrival_index >= request.arrival_index:
            return
        yield other
