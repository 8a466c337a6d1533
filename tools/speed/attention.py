"""Day 4.6: measures attention of one token to many keys.

    python -m tools.speed.attention kernels --read 40e9 --peak 500e9 --day 4.6 --rounds 5

Measures two problems: Qwen3-0.6B's heads, and a single KV head, whose keys must be divided among
the threads. Clock, comparison and roofline are functions of day 4.1: the learner's if this process
imports the learner's `tiny_llm`. The output has the format of matmuls.py.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from tiny_llm import flash_attention
from tiny_llm.kernels.roofline import HardwareLimits, KernelCost, attention_cost

from .matmuls import measurement_main, row, run_interleaved, runnable, with_variables

VARIABLE = "TINY_LLM_ATTENTION"
KERNELS = ("loops", "scores", "online", "split")
ON_ONE_HEAD = ("online", "split")
# Arguments of `Attention`. The layers' keys and values together exceed most CPU caches.
HEADS = (16, 8, 128, 4096, 4)
ONE_HEAD = (8, 1, 128, 4096, 16)


class Attention:
    """Attention of one token: H_q query heads, H key heads of size D, S keys.

    Runs in `num_layers` layers with different keys and values.
    """

    def __init__(self, H_q: int, H: int, D: int, S: int, num_layers: int):
        def half(*shape: int) -> mx.array:
            return mx.random.normal(shape).astype(mx.bfloat16)

        self._layers = [
            (half(1, H_q, 1, D), half(1, H, S, D), half(1, H, S, D)) for _ in range(num_layers)
        ]
        mx.eval(self._layers)
        one = attention_cost(H_q, H, D, S)
        self.cost = KernelCost(num_layers * one.num_bytes, num_layers * one.flops)

    def with_kernel(self, kernel: str | None) -> Callable[[], None]:
        """Returns a function that runs all layers with a kernel; None: this machine's best."""

        def run() -> None:
            with with_variables({VARIABLE: kernel}):
                mx.eval([flash_attention(*layer) for layer in self._layers])

        return run


def measure_on(
    problem: Sequence[int], names: Sequence[str | None], limits: HardwareLimits, rounds: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Measures one problem; returns (rows by kernel, reasons for missing rows).

    `problem` has the arguments of `Attention`; the name None is this machine's "best" kernel.
    """
    attention = Attention(*problem)
    runs, unwritten = runnable({name or "best": attention.with_kernel(name) for name in names})
    times = run_interleaved(runs, rounds)
    return {name: row(times[name], attention.cost, limits) for name in runs}, unwritten


def measure(limits: HardwareLimits, rounds: int, best: bool) -> dict[str, Any]:
    """Measures `HEADS` and `ONE_HEAD` with implemented kernels, or only the best."""
    rows, unwritten = measure_on(HEADS, (None,) if best else KERNELS, limits, rounds)
    one_head, _ = measure_on(ONE_HEAD, (None,) if best else ON_ONE_HEAD, limits, rounds)
    return {"rows": rows, "one_head": one_head, "unwritten": unwritten, "prefetch_distance": None}


if __name__ == "__main__":
    sys.exit(measurement_main(measure))
