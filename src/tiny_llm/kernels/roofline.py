"""How fast a kernel is: a clock, a fair comparison, and the least time that the machine allows.

Nothing here knows a kernel: what is measured is a function without arguments that returns arrays.
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
    """Seconds of several runs of the same thing.

    Attributes:
        median: what to expect.
        minimum: what the kernel can do when nothing disturbs it.
    """

    median: float
    minimum: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Timings":
        """Summarizes measured seconds, at least one."""
        return cls(statistics.median(seconds), min(seconds))


@dataclass(frozen=True)
class HardwareLimits:
    """What a machine can do at most.

    Attributes:
        read_bytes_per_s: reading memory, all threads.
        flops_per_s: multiplications and additions, all threads.
    """

    read_bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True)
class KernelCost:
    """What no implementation of an operation can avoid.

    Attributes:
        num_bytes: read or written, each number once.
        flops: multiplications and additions.
    """

    num_bytes: float
    flops: float


def time_runs(
    run: Run, repeats: int, warm_up: int = 1, clock: Callable[[], float] = time.perf_counter
) -> Timings:
    """Times a function that returns lazy arrays.

    Args:
        run: what is measured; its result is evaluated, and that counts.
        repeats: how many runs count, at least one.
        warm_up: how many are run before, and do not count.
        clock: tells seconds.
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
    """Times several functions in turns, so that a slow minute of the machine is everybody's.

    Each is run once before, which does not count. Then a round runs every one of them once; every
    other round goes through them backwards, so that none always has the same neighbour.

    Args:
        runs: by name; see `time_runs`.
        rounds: how many, at least one.
        clock: tells seconds.
    """
    # [task 4.1.2 compare]
    names = list(runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        mx.eval(runs[name]())
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            seconds[name].append(time_runs(runs[name], 1, warm_up=0, clock=clock).minimum)
    return {name: Timings.of(found) for name, found in seconds.items()}
    # [/task 4.1.2 compare]


def matmul_cost(M: int, O: int, I: int, bits: int, group_size: int) -> KernelCost:
    """The cost of a · wᵀ with quantized w: bytes of w, of a (M×I) and of the result (M×O).

    Scales, biases, activations and results have 16 bits. An output takes a multiplication and an
    addition for each weight; what is needed once a group does not count.
    """
    # [task 4.1.3 product]
    weights = O * I * bits / 8 + O * (I / group_size) * 2 * 2
    return KernelCost(weights + 2 * M * (I + O), 2 * M * O * I)
    # [/task 4.1.3 product]


def attention_cost(H_q: int, H: int, D: int, S: int) -> KernelCost:
    """The cost of attending with one query token to S keys and values, H×S×D each, of 16 bits.

    Queries and results are too small to count. Every query head multiplies and adds with all keys
    of its key head, and with all values.
    """
    # [task 4.1.3 attention]
    return KernelCost(2 * H * S * D * 2, 2 * 2 * H_q * S * D)
    # [/task 4.1.3 attention]


def roofline_seconds(cost: KernelCost, limits: HardwareLimits) -> float:
    """The least time that the machine allows: memory and arithmetic work at once."""
    # [task 4.1.3 least-seconds]
    return max(cost.num_bytes / limits.read_bytes_per_s, cost.flops / limits.flops_per_s)
    # [/task 4.1.3 least-seconds]


def roofline_fraction(times: Timings, cost: KernelCost, limits: HardwareLimits) -> float:
    """Which part of the machine's limit a kernel reaches, at its best: 1 is the limit."""
    # [task 4.1.4 share]
    return roofline_seconds(cost, limits) / times.minimum
    # [/task 4.1.4 share]


def furthest_from_roofline(
    measured: Mapping[str, Timings], costs: Mapping[str, KernelCost], limits: HardwareLimits
) -> str:
    """The kernel with the most to gain for what it does: the smallest share of its limit.

    Args:
        measured: by name.
        costs: of the same names.
        limits: the machine's.
    """
    # [task 4.1.4 slowest]
    return min(measured, key=lambda name: roofline_fraction(measured[name], costs[name], limits))
    # [/task 4.1.4 slowest]


def bytes_in_flight(latency: float, bytes_per_s: float) -> float:
    """How much memory must be on its way at any time for it to arrive at a given speed.

    Args:
        latency: seconds from asking for a line of memory to having it.
        bytes_per_s: the speed.

    Source: Little, "A proof for the queuing formula L = λW", 1961.
    """
    # [task 4.3.3 in-flight]
    return latency * bytes_per_s
    # [/task 4.3.3 in-flight]


def best_prefetch_distance(measured: Mapping[int, Timings], tolerance: float = 0.02) -> int:
    """The shortest distance of prefetching that is as good as the best, but for noise.

    A longer one gains nothing, and fetches more that is never used at the end of the weights.

    Args:
        measured: by distance in bytes; minima count.
        tolerance: how much longer than the best time still counts as equal, as a share of it.
    """
    # [task 4.3.3 nearest]
    best = min(times.minimum for times in measured.values())
    return min(
        ahead for ahead, times in measured.items() if times.minimum <= best * (1 + tolerance)
    )
    # [/task 4.3.3 nearest]


def seconds_per_node(measured: Mapping[int, Timings]) -> float:
    """What a node of the graph costs, from graphs of different lengths: seconds for one node more.

    Evaluating a graph costs something even if it has one node. So the slope counts, of the straight
    line that is nearest to all measurements (least squares).

    Args:
        measured: by number of nodes, at least two numbers; minima count.
    """
    # [task 4.7.1 node]
    mean_nodes = statistics.mean(measured)
    mean_seconds = statistics.mean(times.minimum for times in measured.values())
    together = sum((n - mean_nodes) * (measured[n].minimum - mean_seconds) for n in measured)
    return together / sum((n - mean_nodes) ** 2 for n in measured)
    # [/task 4.7.1 node]


def captured_time_fraction(nodes: int, captured_nodes: int, node: float, seconds: float) -> float:
    """Which part of its time a step should still take once it is recorded.

    Args:
        nodes: of the step's graph as it is.
        captured_nodes: of the graph once it is recorded.
        node: seconds that a node costs, from `seconds_per_node`.
        seconds: the step as it is.

    Returns:
        1 if recording gains nothing, and never below 0.
    """
    # [task 4.7.1 share]
    return max(0.0, 1 - (nodes - captured_nodes) * node / seconds)
    # [/task 4.7.1 share]
