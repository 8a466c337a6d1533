"""Roofline analysis: kernel timing, comparison and hardware limits.

A benchmark is any function without arguments that returns arrays, so any kernel can be timed.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

Run = Callable[[], Any]


@dataclass(frozen=True)
class Timings:
    """Timings of repeated runs, in seconds."""

    median: float  # typical time
    minimum: float  # the run with the least interference from other processes

    @classmethod
    def of(cls, seconds: list[float]) -> "Timings":
        return cls(statistics.median(seconds), min(seconds))


@dataclass(frozen=True)
class HardwareLimits:
    read_bytes_per_s: float  # memory read bandwidth of all threads together
    flops_per_s: float  # multiplications and additions per second, all threads together


@dataclass(frozen=True)
class KernelCost:
    """Work that any implementation of an operation has to do."""

    num_bytes: float  # memory traffic if each element is read or written once
    flops: float  # multiplications and additions


def time_runs(
    run: Run, repeats: int, warm_up: int = 1, clock: Callable[[], float] = time.perf_counter
) -> Timings:
    """Times a function that returns lazy arrays.

    Args:
        run: function to measure, including the evaluation of its result.
        repeats: number of measured runs, at least one.
        warm_up: number of unmeasured runs before the measured ones.
        clock: current time in seconds.
    """
    # [task 4.1.1 time-runs]
    for _ in range(warm_up):
        mx.eval(run())
    seconds = []
    for _ in range(repeats):
        start = clock()
        mx.eval(run())
        seconds.append(clock() - start)
    return Timings.of(seconds)
    # [/task 4.1.1 time-runs]


def compare(
    runs: Mapping[str, Run], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Timings]:
    """Times functions in alternation, so that interference affects all equally.

    After a warm-up run of each function, a round runs each of them once; every other round runs in
    reverse order, so that no function always follows the same one.

    Args:
        runs: functions by name; see `time_runs`.
        rounds: number of rounds, at least one.
    """
    # [task 4.1.2 compare]
    names = list(runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        mx.eval(runs[name]())
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            seconds[name].append(time_runs(runs[name], 1, warm_up=0, clock=clock).minimum)
    return {name: Timings.of(times) for name, times in seconds.items()}
    # [/task 4.1.2 compare]


def matmul_cost(M: int, O: int, I: int, bits: int, group_size: int) -> KernelCost:
    """Cost of a · wᵀ with quantized w: traffic for w, a (M×I) and the M×O result.

    Scales, biases, activations and results are 16-bit. Each output takes one multiplication and one
    addition per weight; per-group work is ignored.
    """
    # [task 4.1.3 product]
    weights = O * I * bits / 8 + O * (I / group_size) * 2 * 2
    return KernelCost(weights + 2 * M * (I + O), 2 * M * O * I)
    # [/task 4.1.3 product]


def attention_cost(H_q: int, H: int, D: int, S: int) -> KernelCost:
    """Cost of attention for one query token with H_q heads over 16-bit K and V.

    K and V are H×S×D each: H heads, S tokens, head size D. The traffic of queries and results is
    ignored. Each query head takes one multiplication and one addition per element of its key head
    and of its value head.
    """
    # [task 4.1.3 attention]
    return KernelCost(2 * H * S * D * 2, 2 * 2 * H_q * S * D)
    # [/task 4.1.3 attention]


def roofline_seconds(cost: KernelCost, limits: HardwareLimits) -> float:
    """Minimum time in seconds, given that memory traffic and arithmetic overlap."""
    # [task 4.1.3 least-seconds]
    return max(cost.num_bytes / limits.read_bytes_per_s, cost.flops / limits.flops_per_s)
    # [/task 4.1.3 least-seconds]


def roofline_fraction(times: Timings, cost: KernelCost, limits: HardwareLimits) -> float:
    """Fraction of the roofline that a kernel's fastest run reaches; 1 is ideal."""
    # [task 4.1.4 share]
    return roofline_seconds(cost, limits) / times.minimum
    # [/task 4.1.4 share]


def furthest_from_roofline(
    measured: Mapping[str, Timings], costs: Mapping[str, KernelCost], limits: HardwareLimits
) -> str:
    """Returns the name of the kernel with the lowest roofline fraction."""
    # [task 4.1.4 slowest]
    return min(measured, key=lambda name: roofline_fraction(measured[name], costs[name], limits))
    # [/task 4.1.4 slowest]


def bytes_in_flight(latency: float, bytes_per_s: float) -> float:
    """Bytes in flight needed to sustain a bandwidth, for a latency in seconds.

    Source: Little, "A proof for the queuing formula L = λW", 1961.
    """
    # [task 4.3.3 in-flight]
    return latency * bytes_per_s
    # [/task 4.3.3 in-flight]


def best_prefetch_distance(measured: Mapping[int, Timings], tolerance: float = 0.02) -> int:
    """Returns the shortest prefetch distance within a tolerance of the best time.

    A longer distance gains nothing and fetches more unused bytes past the end of the weights.

    Args:
        measured: timings by distance in bytes; minima are compared.
        tolerance: relative tolerance.
    """
    # [task 4.3.3 nearest]
    best = min(times.minimum for times in measured.values())
    return min(
        ahead for ahead, times in measured.items() if times.minimum <= best * (1 + tolerance)
    )
    # [/task 4.3.3 nearest]


def seconds_per_node(measured: Mapping[int, Timings]) -> float:
    """Estimates the cost of a graph node in seconds.

    Returns the slope of a least-squares line through the measurements, since evaluating a graph
    also has a fixed cost.

    Args:
        measured: timings by number of nodes, at least two; minima are used.
    """
    # [task 4.7.1 node]
    mean_nodes = statistics.mean(measured)
    mean_seconds = statistics.mean(times.minimum for times in measured.values())
    covariance = sum((n - mean_nodes) * (measured[n].minimum - mean_seconds) for n in measured)
    return covariance / sum((n - mean_nodes) ** 2 for n in measured)
    # [/task 4.7.1 node]


def captured_time_fraction(nodes: int, captured_nodes: int, node: float, seconds: float) -> float:
    """Predicts a captured step's time as a fraction of the uncaptured step's.

    Args:
        nodes, captured_nodes: nodes in the step's graph without and with capture.
        node: seconds per node, from `seconds_per_node`.
        seconds: the step's time without capture.

    Returns:
        The fraction, at least 0; 1 if capture gains nothing.
    """
    # [task 4.7.1 share]
    return max(0.0, 1 - (nodes - captured_nodes) * node / seconds)
    # [/task 4.7.1 share]
