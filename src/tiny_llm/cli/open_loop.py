"""Synthetic workload, and open-loop load: arrivals, latencies, goodput.

A closed-loop client waits for a response before its next request, which hides a slow server's
queueing. An open-loop client sends each request when it is due, like independent users.

All times are in seconds on one clock.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.inputs.sampling_params import SamplingParams
from ..engine.llm import LLM
from ..errors import UserError


@dataclass(frozen=True)
class LengthRange:
    """Inclusive range of sequence lengths, in tokens."""

    kind: str  # "input" or "output", as in the flags --min-<kind>-len and --max-<kind>-len
    low: int  # at least 1
    high: int

    def __post_init__(self) -> None:
        if self.high < self.low:
            raise UserError(
                f"--max-{self.kind}-len must be at least --min-{self.kind}-len ({self.low}), got "
                f"{self.high}."
            )


@dataclass(frozen=True)
class Workload:
    """A benchmark's sequences: the prompts' token ids, and the output lengths."""

    prompts: list[list[int]]
    output_lens: list[int]

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def output_tokens(self) -> int:
        return sum(self.output_lens)


def synthetic_workload(
    num_seqs: int, inputs: LengthRange, outputs: LengthRange, vocab_size: int, seed: int
) -> Workload:
    """Draws random lengths and prompt token ids; deterministic across platforms."""
    rng = np.random.default_rng(seed)
    input_lens = rng.integers(inputs.low, inputs.high, num_seqs, endpoint=True)
    output_lens = rng.integers(outputs.low, outputs.high, num_seqs, endpoint=True)
    prompts = [rng.integers(0, vocab_size, length).tolist() for length in input_lens]
    return Workload(prompts, output_lens.tolist())


class TimestampTokenizer:
    """Tokenizer stub that records the time of each token instead of its text."""

    eos_token_ids: frozenset[int] = frozenset()  # every sequence runs to its output length

    def __init__(self) -> None:
        self.sequences: list[list[float]] = []  # token times of each started sequence, in seconds

    @property
    def detokenizer(self) -> "_TimestampDetokenizer":
        """A new detokenizer per access, as in mlx_lm's tokenizers."""
        self.sequences.append([])
        return _TimestampDetokenizer(self.sequences[-1])


class _TimestampDetokenizer:
    text = last_segment = ""

    def __init__(self, times: list[float]):
        self._times = times

    def add_token(self, token: int) -> None:
        self._times.append(time.perf_counter())

    def finalize(self) -> None:
        """No-op."""


def latencies(sequences: Sequence[Sequence[float]], started: float) -> dict[str, Any]:
    """Summarizes time to first token ("ttft") and inter-token latency ("itl").

    Args:
        sequences: token times of each sequence, in seconds.
        started: arrival time of all sequences, on the same clock; latencies include queueing.
    """
    first = [times[0] - started for times in sequences if times]
    gaps = [gap for times in sequences for gap in np.diff(times)]
    return summarize({"ttft": first, "itl": gaps}, np.percentile)


def summarize(
    latencies: Mapping[str, Sequence[float]], percentile: Callable[[Sequence[float], float], Any]
) -> dict[str, float | None]:
    """Median and 95th percentile of each list of latencies.

    Args:
        latencies: seconds, by name.
        percentile: called with a list and a percentage.

    Returns:
        `<name>_ms_median` and `<name>_ms_p95` in milliseconds; None for an empty list.
    """
    return {
        f"{name}_ms_{key}": round(float(percentile(values, percent)) * 1e3, 3) if values else None
        for name, values in latencies.items()
        for key, percent in (("median", 50), ("p95", 95))
    }


def poisson_arrivals(num_requests: int, rate: float, seed: int) -> list[float]:
    """Arrival times of a Poisson process; the first is 0.

    Gaps between arrivals are independent and exponentially distributed. With the same seed, a
    different rate only rescales the arrival times.

    Args:
        num_requests: at least 1.
        rate: mean number of requests per second.
    """
    rng = np.random.default_rng(seed)
    # [task 5.3.1 arrivals]
    gaps = rng.exponential(1 / rate, num_requests - 1)
    return [0.0, *np.cumsum(gaps).tolist()]
    # [/task 5.3.1 arrivals]


@dataclass
class RequestTimes:
    """Event times of one request.

    Attributes:
        arrival: when the request was due, even if it was sent later.
        first_token, last_token: NaN before the first token.
        num_tokens: output tokens so far.
    """

    arrival: float
    first_token: float = math.nan
    last_token: float = math.nan
    num_tokens: int = 0

    def record(self, now: float, num_tokens: int) -> None:
        """Records `num_tokens` new tokens: one, plus any accepted draft tokens."""
        # [task 5.3.2 record]
        if self.num_tokens == 0:
            self.first_token = now
        self.last_token = now
        self.num_tokens += num_tokens
        # [/task 5.3.2 record]

    @property
    def ttft(self) -> float:
        """Time to first token, including queueing."""
        # [task 5.3.2 ttft]
        return self.first_token - self.arrival
        # [/task 5.3.2 ttft]

    @property
    def tpot(self) -> float | None:
        """Mean time per output token after the first; None if there is only one."""
        # [task 5.3.2 tpot]
        if self.num_tokens == 1:
            return None
        return (self.last_token - self.first_token) / (self.num_tokens - 1)
        # [/task 5.3.2 tpot]


def run_open_loop(
    llm: LLM,
    workload: Workload,
    arrivals: Sequence[float],
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> list[RequestTimes]:
    """Runs a workload; adds each request before the first step after its arrival.

    Args:
        llm: an engine without requests.
        arrivals: each request's arrival in seconds after the first, in ascending order.
        sleep: waits for a number of seconds, which must not be negative.

    Returns:
        Times of each request, in order of arrival.
    """
    started = clock()
    pending = deque(zip(workload.prompts, workload.output_lens, arrivals, strict=True))
    requests: dict[str, RequestTimes] = {}  # by request id
    # [task 5.3.3 loop]
    while pending or llm.has_unfinished_requests:
        while pending and started + pending[0][2] <= clock():
            prompt, output_len, arrival = pending.popleft()
            params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
            requests[llm.add_request(prompt, params)] = RequestTimes(started + arrival)
        if llm.has_unfinished_requests:
            for output in llm.step():
                requests[output.request_id].record(clock(), len(output.token_ids))
        else:
            sleep(max(0.0, started + pending[0][2] - clock()))
    # [/task 5.3.3 loop]
    actual, expected = [request.num_tokens for request in requests.values()], workload.output_lens
    assert actual == expected, f"expected outputs of {expected} tokens, got {actual}"
    return list(requests.values())


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile: the smallest value ≥ `percent` % of the values.

    Args:
        values: at least one, in any order.
        percent: above 0, at most 100.
    """
    # [task 5.3.4 percentile]
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[rank - 1]
    # [/task 5.3.4 percentile]


@dataclass(frozen=True)
class SLO:
    """Service level objective: upper bounds on a request's TTFT and TPOT."""

    ttft: float = math.inf
    tpot: float = math.inf

    def is_met(self, request: RequestTimes) -> bool:
        """Whether a request meets both bounds; a one-token output has no TPOT."""
        # [task 5.3.4 is-met]
        return request.ttft <= self.ttft and (request.tpot is None or request.tpot <= self.tpot)
        # [/task 5.3.4 is-met]


def goodput(requests: Sequence[RequestTimes], slo: SLO) -> float:
    """Requests per second that meet the SLO, from first arrival to last token."""
    # [task 5.3.4 goodput]
    seconds = max(one.last_token for one in requests) - min(one.arrival for one in requests)
    return sum(map(slo.is_met, requests)) / seconds
    # [/task 5.3.4 goodput]
