"""Week 5, day 3, optional: arrivals, latency and goodput in virtual time."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import assert_equal
from tiny_llm.cli.open_loop import (
    SLO,
    RequestTimes,
    Workload,
    goodput,
    percentile,
    poisson_arrivals,
    run_open_loop,
)


class VirtualEngine:
    """Fake engine and clock: each step generates a token per running request.

    Each clock read takes `clock_tick` seconds; `added` has the times of `add_request`.
    """

    def __init__(self, step_seconds: float = 1.0, max_num_seqs: int = 99, clock_tick: float = 0.0):
        self.now = 100.0
        self.added: list[float] = []
        self.sleeps: list[float] = []
        self._step_seconds = step_seconds
        self._max_num_seqs = max_num_seqs
        self._clock_tick = clock_tick
        self._remaining: dict[str, int] = {}  # remaining output tokens by request id

    def clock(self) -> float:
        self.now += self._clock_tick
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0, f"expected a sleep of at least 0 s, got {seconds:.2f} s"
        assert len(self.sleeps) < 1000, "expected one sleep until the next arrival"
        self.sleeps.append(seconds)
        self.now += seconds

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self._remaining)

    def add_request(self, prompt: list[int], params: Any) -> str:
        request_id = f"request of {prompt}"
        self.added.append(self.now)
        self._remaining[request_id] = params.max_tokens
        return request_id

    def step(self) -> list[Any]:
        assert self._remaining, "expected no engine step without running requests, got one"
        self.now += self._step_seconds
        running = list(itertools.islice(self._remaining, self._max_num_seqs))
        for request_id in running:
            self._remaining[request_id] -= 1
            if self._remaining[request_id] == 0:
                del self._remaining[request_id]
        return [SimpleNamespace(request_id=each, token_ids=(7,)) for each in running]


def run(engine: VirtualEngine, output_lens: list[int], arrivals: list[float]) -> list[RequestTimes]:
    workload = Workload([[number] for number in range(len(output_lens))], output_lens)
    llm: Any = engine
    return run_open_loop(llm, workload, arrivals, engine.clock, engine.sleep)


def test_task_1_arrivals_start_at_zero_and_ascend():
    assert poisson_arrivals(1, 5.0, seed=0) == [0.0]
    arrivals = poisson_arrivals(500, 5.0, seed=0)
    assert len(arrivals) == 500, f"expected 500 arrivals, got {len(arrivals)}"
    assert arrivals[0] == 0, f"expected the first arrival at 0, got {arrivals[0]}"
    assert arrivals == sorted(arrivals), "expected ascending arrival times"


@pytest.mark.parametrize("rate", [0.5, 8.0])
def test_task_1_gaps_are_exponential(rate):
    arrivals = poisson_arrivals(20_001, rate, seed=3)
    gaps = [after - before for before, after in itertools.pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    assert_equal(mean, pytest.approx(1 / rate, rel=0.04), f"the mean gap at {rate} requests/s")
    for means in (1, 3):
        longer = sum(gap > means / rate for gap in gaps) / len(gaps)
        expected = pytest.approx(math.exp(-means), abs=0.015)
        assert_equal(longer, expected, f"e^-{means} of the gaps to exceed {means} mean gaps")


def test_task_1_arrivals_are_reproducible_and_scale_with_the_rate():
    arrivals, same, other, four_times = (
        poisson_arrivals(50, rate, seed) for rate, seed in ((2.0, 1), (2.0, 1), (2.0, 2), (8.0, 1))
    )
    assert same == arrivals, "expected equal arrivals for equal seeds"
    assert other != arrivals, "expected different arrivals for different seeds"
    quarter = pytest.approx([each / 4 for each in arrivals])
    assert_equal(four_times, quarter, "a quarter of each arrival time at four times the rate")


def test_task_2_latency_and_tokens():
    request = RequestTimes(arrival=10.0)
    for now in (10.5, 10.625, 11.25):
        request.record(now, 1)
    assert request.ttft == 0.5, f"expected 10.5 − 10.0 = 0.5 s, got {request.ttft}"
    assert_equal(request.tpot, 0.375, "(11.25 − 10.5) / 2 s, as three tokens have two gaps")
    request = RequestTimes(arrival=0.0)
    for now, num_tokens in ((1.0, 1), (2.0, 4), (3.0, 3)):
        request.record(now, num_tokens)
    assert request.num_tokens == 8, f"expected 1 + 4 + 3 tokens, got {request.num_tokens}"
    tpot = pytest.approx(2 / 7)
    assert_equal(request.tpot, tpot, "2 s for the seven tokens after the first")
    request = RequestTimes(arrival=4.0)
    request.record(6.5, 1)
    assert request.ttft == 2.5
    assert request.tpot is None, f"expected None for a request without gaps, got {request.tpot}"


def test_task_3_requests_are_added_when_due():
    engine = VirtualEngine()
    requests = run(engine, [2, 2, 2], [0.0, 0.5, 4.0])
    assert_equal(engine.sleeps, [1.0], "one sleep, from the end of the second output to 104")
    hint = "the requests due at 100, 100.5 and 104 before the steps at 100, 101 and 104"
    assert_equal(engine.added, [100, 101, 104], hint)
    assert [one.first_token for one in requests] == [101, 102, 105]
    assert [one.last_token for one in requests] == [102, 103, 106]


def test_task_3_latencies_count_from_the_arrival():
    """Latency includes the wait for the end of the step in progress."""
    ttft = [one.ttft for one in run(VirtualEngine(step_seconds=2.0), [1, 1], [0.0, 0.5])]
    assert_equal(ttft, [2.0, 3.5], "2 s, and 3.5 s from the arrival at 0.5 to the step's end at 4")


def test_task_3_queue_grows_under_overload():
    engine = VirtualEngine(max_num_seqs=1)
    requests = run(engine, [2] * 5, [float(second) for second in range(5)])
    hint = "a request every second, although each takes two"
    assert_equal(engine.added, [100, 101, 102, 103, 104], hint)
    ttft = [one.ttft for one in requests]
    assert_equal(ttft, [1, 2, 3, 4, 5], "a TTFT one second longer for every request")


def test_task_3_all_due_requests_are_added():
    engine = VirtualEngine()
    requests = run(engine, [3, 1, 2], [0.0, 0.25, 0.5])
    hint = "both requests due during the first step before the second"
    assert_equal(engine.added, [100, 101, 101], hint)
    assert [one.arrival for one in requests] == [100, 100.25, 100.5]
    assert [one.num_tokens for one in requests] == [3, 1, 2]
    gaps = [1.5 + number / 20 for number in range(40)]
    requests = run(VirtualEngine(clock_tick=0.3), [1] * 40, list(itertools.accumulate(gaps)))
    assert [one.num_tokens for one in requests] == [1] * 40


def test_task_4_percentiles_of_an_example():
    values = [0.4, 0.1, 0.3, 0.2]
    for percent, expected in ((25, 0.1), (26, 0.2), (50, 0.2), (75, 0.3), (76, 0.4), (100, 0.4)):
        assert_equal(percentile(values, percent), expected, f"p{percent} of {values}")
    assert values == [0.4, 0.1, 0.3, 0.2], "expected the input list to be unchanged"


@pytest.mark.parametrize("percent", [1, 50, 90, 95, 99, 100])
def test_task_4_percentile_bounds_its_share_of_values(percent):
    for count in range(1, 60):
        values = [(37 * number % 101) / 10 for number in range(count)]
        actual = percentile(values, percent)
        assert actual in values, f"p{percent} of {values}: expected one of the values, got {actual}"
        within = sum(value <= actual for value in values)
        below = sum(value < actual for value in values)
        assert 100 * within >= percent * count > 100 * below, (
            f"p{percent} of {count} values: expected the smallest value that {percent}% do not "
            f"exceed, got {actual}, not exceeded by {within}"
        )


def times(arrival: float, ttft: float, tpot: float, num_tokens: int = 5) -> RequestTimes:
    first_token = arrival + ttft
    return RequestTimes(arrival, first_token, first_token + tpot * (num_tokens - 1), num_tokens)


def test_task_4_both_bounds_must_hold():
    slo = SLO(ttft=0.5, tpot=0.25)
    cases = {(0.5, 0.25): True, (0.25, 0.125): True, (0.75, 0.125): False, (0.25, 0.5): False}
    actual = {case: slo.is_met(times(8.0, *case)) for case in cases}
    assert actual == cases, f"expected {cases} by (ttft, tpot), got {actual}"
    one_token = times(8.0, 0.5, 0.0, num_tokens=1)
    assert slo.is_met(one_token) is True, "expected True: a single token has no TPOT to bound"
    assert SLO().is_met(times(0.0, 1e6, 1e6)) is True, "expected True without bounds"


def test_task_4_goodput_counts_good_requests_per_second():
    requests = [
        times(10.0, 0.5, 0.25),  # ends at 11.5
        times(11.0, 2.0, 0.25),  # exceeds the TTFT bound
        times(12.0, 0.5, 0.25),
        times(12.0, 0.5, 1.0),  # exceeds the TPOT bound; ends at 16.5
        times(14.0, 0.5, 0.25),  # ends at 15.5
    ]
    actual, expected = goodput(requests, SLO(ttft=1.0, tpot=0.5)), pytest.approx(3 / 6.5)
    assert_equal(actual, expected, "3 good requests in the 6.5 s from 10.0 to 16.5")
    assert goodput(requests, SLO(ttft=0.1)) == 0


def test_task_4_goodput_falls_under_overload():
    """Eight concurrent requests of 0.8 s: at most ten complete per second."""
    found = {}
    for rate in (4, 8, 40):
        engine = VirtualEngine(step_seconds=0.1, max_num_seqs=8)
        requests = run(engine, [8] * 300, poisson_arrivals(300, rate, seed=0))
        found[rate] = goodput(requests, SLO(ttft=1.0))
    goodputs = {rate: round(good, 2) for rate, good in found.items()}
    assert found[4] > 3, f"expected nearly all of 4 requests/s to be good, got {goodputs}"
    assert found[8] > found[4], f"expected more goodput at 8 requests/s, got {goodputs}"
    assert found[40] < 2, f"expected low goodput at 40 requests/s, got {goodputs}"
