"""Week 4, day 1: timing, interleaved comparison and the roofline."""

import mlx.core as mx
import pytest

from tiny_llm.kernels.roofline import (
    HardwareLimits,
    KernelCost,
    Timings,
    attention_cost,
    compare,
    furthest_from_roofline,
    matmul_cost,
    roofline_fraction,
    roofline_seconds,
    time_runs,
)


class Machine:
    """Simulated clock, which each evaluation of a kernel advances."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[str] = []

    def clock(self) -> float:
        return self.now

    def kernel(self, name: str, *seconds: float):
        """Kernel whose evaluations take the given seconds; the last value repeats."""
        left = list(seconds)

        def run():
            return _Lazy(self, name, left.pop(0) if len(left) > 1 else left[0])

        return run


class _Lazy:
    def __init__(self, machine: Machine, name: str, seconds: float):
        self.machine, self.name, self.seconds = machine, name, seconds


@pytest.fixture
def machine(monkeypatch) -> Machine:
    """Simulated machine: `mx.eval` of its kernels' arrays advances its clock."""
    real = mx.eval

    def evaluate(*results):
        for result in results:
            if isinstance(result, _Lazy):
                result.machine.now += result.seconds
                result.machine.ran.append(result.name)
            else:
                real(result)

    monkeypatch.setattr(mx, "eval", evaluate)
    return Machine()


def test_task_1_evaluations_are_timed_without_warmup(machine):
    times = time_runs(machine.kernel("a", 2.0), repeats=3, clock=machine.clock)
    assert times == Timings(2.0, 2.0), "expected 2 s per run: evaluation must be timed"
    assert machine.ran == ["a"] * 4, "expected one warm-up run and three measured runs"
    run = machine.kernel("a", 9.0, 8.0, 1.0, 3.0, 2.0)
    times = time_runs(run, repeats=3, warm_up=2, clock=machine.clock)
    assert times == Timings(median=2.0, minimum=1.0)


def test_task_1_real_computation():
    x = mx.random.normal((64, 64))
    times = time_runs(lambda: x @ x, repeats=5)
    assert 0 < times.minimum <= times.median


def test_task_2_order_and_warmup(machine):
    runs = {name: machine.kernel(name, 1.0) for name in "abc"}
    compare(runs, rounds=3, clock=machine.clock)
    assert "".join(machine.ran[:3]) == "abc", "expected one warm-up run per kernel"
    assert "".join(machine.ran[3:]) == "abccbaabc"
    runs = {"a": machine.kernel("a", 50.0, 1.0, 3.0, 2.0), "b": machine.kernel("b", 70.0, 4.0)}
    times = compare(runs, rounds=3, clock=machine.clock)
    assert times == {"a": Timings(2.0, 1.0), "b": Timings(4.0, 4.0)}


def test_task_2_slowdown_affects_both_equally(machine):
    """Every run is slower than the previous run, regardless of the kernel."""

    def run():
        return _Lazy(machine, "x", 1 + 0.01 * len(machine.ran))

    times = compare({"a": run, "b": run}, rounds=40, clock=machine.clock)
    ratio = times["a"].median / times["b"].median
    assert abs(ratio - 1) < 0.005, f"expected equal medians, got a ratio of {ratio:.3f}"


def test_task_3_bytes_and_flops():
    # 151,936×1,024 4-bit weights, and a 2-byte scale and bias per group of 128.
    head = matmul_cost(1, 151_936, 1024, 4, 128)
    assert head.num_bytes == 151_936 * 1024 * 4.25 / 8 + 2 * (1024 + 151_936)
    assert head.flops == 2 * 151_936 * 1024
    many = matmul_cost(64, 3072, 1024, 8, 32)
    assert many.num_bytes == 3072 * (1024 + 4 * 32) + 2 * 64 * (1024 + 3072)
    assert many.flops == 64 * 2 * 3072 * 1024, "expected the FLOPs of all rows"
    cost = attention_cost(H_q=16, H=8, D=128, S=1000)
    assert cost.num_bytes == 2 * 8 * 1000 * 128 * 2
    assert cost.flops == 4 * 16 * 1000 * 128


def test_task_3_memory_and_arithmetic_overlap():
    limits = HardwareLimits(read_bytes_per_s=10e9, flops_per_s=100e9)
    assert roofline_seconds(KernelCost(10e9, 1e9), limits) == 1.0
    seconds = roofline_seconds(KernelCost(1e9, 300e9), limits)
    assert seconds == 3.0, "expected the longer of the memory time and the arithmetic time"
    seconds = roofline_seconds(KernelCost(10e9, 100e9), limits)
    assert seconds == 1.0, "expected the maximum of both times, not the sum"


def test_task_4_share_of_the_roofline():
    limits = HardwareLimits(10e9, 100e9)
    assert roofline_fraction(Timings(median=8.0, minimum=4.0), KernelCost(20e9, 0), limits) == 0.5
    assert roofline_fraction(Timings(1.0, 1.0), KernelCost(5e9, 100e9), limits) == 1.0
    measured = {
        "head": Timings(2.2, 2.0),  # 20e9 bytes in 2 s: at the limit
        "down": Timings(0.5, 0.4),  # 1e9 bytes: a quarter
        "gate": Timings(0.3, 0.1),  # 0.6e9 bytes: 60 % of the limit at best, 20 % in the median
    }
    num_bytes = {"head": 20e9, "down": 1e9, "gate": 0.6e9}
    costs = {name: KernelCost(n, 1e9) for name, n in num_bytes.items()}
    assert furthest_from_roofline(measured, costs, limits) == "down"
