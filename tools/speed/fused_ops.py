"""Day 4.5: operations between the matmuls of a block, fused and unfused.

    python -m tools.speed.fused_ops kernels --read 40e9 --peak 500e9 --day 4.5 --rounds 5

Arguments and results as in matmuls.py. Week 1's layers are the learner's if this process imports
the learner's `tiny_llm`.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from tiny_llm import RMSNorm, RoPE, kernels
from tiny_llm.basics import silu
from tiny_llm.kernels.roofline import HardwareLimits, KernelCost

from .matmuls import measurement_main, row, run_interleaved, runnable, with_variables

VARIABLE = "TINY_LLM_FUSED"
# Prompt length in tokens, and Qwen3-0.6B's hidden size, query heads, KV heads, head size and MLP
# size. The activations exceed most CPU caches.
TOKENS, E, H_Q, H, D, I = 4096, 1024, 16, 8, 128, 3072
FEW_TOKENS, FEW_ROUNDS = 512, 8  # tokens of a short prompt, factor on its number of rounds
EPS = 1e-6
# Compared settings: (value of TINY_LLM_FUSED, schedule of the thread pool).
VARIANTS = {
    "loops": ("loops", "static"),
    "vectors": ("vectors", "static"),
    "dynamic": ("vectors", "dynamic"),
}
LAYERS = "layers"


class FusedOps:
    """The operations between a transformer block's matmuls, for L prompt tokens."""

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
        """Lazy results of the extension's fused operations."""
        heads = (self._query, self._key)
        return [
            *kernels.add_rms_norm(self._x, self._y, self._weight, EPS),
            *(kernels.qk_norm_rope(x, self._head_weight, EPS, *self._rotation) for x in heads),
            kernels.swiglu(self._gate, self._up),
        ]

    def layers(self) -> list[mx.array]:
        """Lazy results of Week 1's layers, built from MLX's operations."""
        total = self._x + self._y
        norm, head_norm = RMSNorm(E, self._weight, EPS), RMSNorm(D, self._head_weight, EPS)
        heads = [
            mx.contiguous(self._rope(head_norm(x)).swapaxes(1, 2)) for x in (self._query, self._key)
        ]
        return [total, norm(total), *heads, silu(self._gate) * self._up]


def fused_ops_cost(L: int) -> KernelCost:
    """Minimum cost for L tokens: one access per array, one FLOP per exponential."""
    heads = L * (H_Q + H) * D
    num_bytes = 2 * (4 * L * E + 2 * heads + 3 * L * I) + 2 * 4 * L * D // 2
    flops = 6 * L * E + (4 + 3) * heads + 6 * L * I
    return KernelCost(num_bytes, flops)


@contextmanager
def use_variant(fused: str, schedule: str) -> Iterator[None]:
    """Selects an entry of `VARIANTS`; raises `RuntimeError` if not implemented."""
    extension = kernels.extension()
    try:
        extension.set_schedule(schedule)
        with with_variables({VARIABLE: fused}):
            yield
    finally:
        extension.set_schedule("")


def run_fused(ops: FusedOps, name: str) -> Callable[[], None]:
    """Returns a function that runs the fused operations with the entry `name` of `VARIANTS`."""

    def run() -> None:
        with use_variant(*VARIANTS[name]):
            mx.eval(ops.fused())

    return run


def measure(limits: HardwareLimits, rounds: int, best: bool) -> dict[str, Any]:
    """Measures Week 1's layers and `VARIANTS`, interleaved; if `best`, only "dynamic"."""
    ops = FusedOps(TOKENS)
    wanted: dict[str, Callable[[], Any]] = {}
    if best:
        wanted["best"] = run_fused(ops, "dynamic")
    else:
        wanted = {LAYERS: ops.layers, **{name: run_fused(ops, name) for name in VARIANTS}}
    runs, unwritten = runnable(wanted)
    times = run_interleaved(runs, rounds)
    rows = {name: row(times[name], ops.cost, limits) for name in runs}
    remarks = [schedule_remark(rounds)] if {"vectors", "dynamic"} <= set(runs) else []
    return {"rows": rows, "unwritten": unwritten, "prefetch_distance": None, "remarks": remarks}


def schedule_remark(rounds: int) -> str:
    """Compares static and dynamic schedules on a short prompt, where a late thread costs most."""
    ops = FusedOps(FEW_TOKENS)
    times = run_interleaved(
        {name: run_fused(ops, name) for name in ("vectors", "dynamic")}, rounds * FEW_ROUNDS
    )
    equal, claimed = times["vectors"].median, times["dynamic"].median
    return (
        f"{FEW_TOKENS} tokens: median {1e3 * equal:.2f} ms in equal parts, {1e3 * claimed:.2f} ms "
        "with claims"
    )


if __name__ == "__main__":
    sys.exit(measurement_main(measure))
