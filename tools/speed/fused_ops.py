"""Day 4.5: what lies between the products of a prompt, in one pass over memory and in several.

    python -m tools.speed.fused_ops kernels --read 40e9 --peak 500e9 --day 4.5 --rounds 5

The same arguments and results as products.py. The layers of Week 1 are the learner's, if it is a
learner's process.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from tiny_llm import RMSNorm, RoPE, kernels
from tiny_llm.basics import silu
from tiny_llm.errors import TaskNotImplemented
from tiny_llm.kernels.roofline import HardwareLimits, KernelCost

from .matmuls import row, run_interleaved, run_measurement, with_variables

VARIABLE = "TINY_LLM_FUSED"
# Tokens of a prompt, and the sizes of Qwen3-0.6B: so much that no cache holds it all.
TOKENS, E, H_Q, H, D, I = 4096, 1024, 16, 8, 128, 3072
FEW_TOKENS, FEW_ROUNDS = 512, 8  # and rounds, times those of the others
EPS = 1e-6
# What is compared: TINY_LLM_FUSED, and how threads divide the work.
WAYS = {
    "loops": ("loops", "static"),
    "vectors": ("vectors", "static"),
    "dynamic": ("vectors", "dynamic"),
}
LAYERS = "layers"


class FusedOps:
    """What a block computes between its products, once for each operation.

    Args:
        L: tokens.
    """

    def __init__(self, L: int):
        def half(*shape: int) -> mx.array:
            return mx.random.normal(shape).astype(mx.bfloat16)

        self._x, self._y = half(1, L, E), half(1, L, E)
        self._query, self._key = half(1, L, H_Q, D), half(1, L, H, D)
        self._gate, self._up = half(1, L, I), half(1, L, I)
        self._weight, self._head_weight = half(E), half(D)
        self._rope = RoPE(D, L, base=1_000_000)
        self._rotation = self._rope.cos_sin(None, 1, L)
        mx.eval(self.__dict__, self._rotation)
        self.cost = fused_ops_cost(L)

    def fused(self) -> list[mx.array]:
        """By an operation of the extension each, not evaluated."""
        heads = (self._query, self._key)
        return [
            *kernels.add_rms_norm(self._x, self._y, self._weight, EPS),
            *(kernels.qk_norm_rope(x, self._head_weight, EPS, *self._rotation) for x in heads),
            kernels.swiglu(self._gate, self._up),
        ]

    def layers(self) -> list[mx.array]:
        """By Week 1's layers, whose operations are MLX's, not evaluated."""
        total = self._x + self._y
        norm, head_norm = RMSNorm(E, self._weight, EPS), RMSNorm(D, self._head_weight, EPS)
        heads = [
            mx.contiguous(self._rope(head_norm(x)).swapaxes(1, 2)) for x in (self._query, self._key)
        ]
        return [total, norm(total), *heads, silu(self._gate) * self._up]


def fused_ops_cost(L: int) -> KernelCost:
    """What cannot be avoided: each number read once, written once. An exponential counts as one."""
    heads = L * (H_Q + H) * D
    num_bytes = 2 * (4 * L * E + 2 * heads + 3 * L * I) + 2 * 4 * L * D // 2
    flops = 6 * L * E + (4 + 3) * heads + 6 * L * I
    return KernelCost(num_bytes, flops)


@contextmanager
def way(fused: str, schedule: str) -> Iterator[None]:
    """What is evaluated meanwhile goes this way.

    Raises:
        RuntimeError: the schedule is still to be written.
    """
    extension = kernels.extension()
    try:
        extension.set_schedule(schedule)
        with with_variables({VARIABLE: fused}):
            yield
    finally:
        extension.set_schedule("")


def run_fused(between: FusedOps, name: str) -> Callable[[], None]:
    """One of `WAYS`, to be timed."""

    def run() -> None:
        with way(*WAYS[name]):
            mx.eval(between.fused())

    return run


def measure(limits: HardwareLimits, rounds: int, best: bool) -> dict[str, Any]:
    """The ways in turns, those that are written; or the last one alone, called "best"."""
    between = FusedOps(TOKENS)
    wanted: dict[str, Callable[[], Any]] = {}
    if best:
        wanted["best"] = run_fused(between, "dynamic")
    else:
        wanted = {LAYERS: between.layers, **{name: run_fused(between, name) for name in WAYS}}
    runs: dict[str, Callable[[], Any]] = {}
    unwritten: dict[str, str] = {}
    for name, run in wanted.items():
        try:
            mx.eval(run())
        except (TaskNotImplemented, RuntimeError, ValueError) as error:
            unwritten[name] = str(error)
        else:
            runs[name] = run
    times = run_interleaved(runs, rounds)
    rows = {name: row(times[name], between.cost, limits) for name in runs}
    remarks = [claims_remark(rounds)] if {"vectors", "dynamic"} <= set(runs) else []
    return {"rows": rows, "unwritten": unwritten, "nearest": None, "remarks": remarks}


def claims_remark(rounds: int) -> str:
    """Equal parts beside claims on less work, where a thread that is late shows."""
    between = FusedOps(FEW_TOKENS)
    times = run_interleaved(
        {name: run_fused(between, name) for name in ("vectors", "dynamic")}, rounds * FEW_ROUNDS
    )
    equal, claimed = times["vectors"].median, times["dynamic"].median
    return (
        f"{FEW_TOKENS} tokens: median {1e3 * equal:.2f} ms in equal parts, {1e3 * claimed:.2f} ms "
        "with claims"
    )


if __name__ == "__main__":
    sys.exit(
        run_measurement(lambda args, limits: measure(limits, args.rounds, args.what == "best"))
    )
