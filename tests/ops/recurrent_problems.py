"""Recurrent operations: random ragged batches, references, chunks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from tests.support import assert_same_bits, random
from tiny_llm import attention, kernels

SLOTS = 9

Arrays = dict[str, mx.array]


@dataclass(frozen=True)
class Batch:
    """A step's sequences: lengths, a read slot of each, a write slot per token."""

    lengths: tuple[int, ...]
    read_slots: tuple[int, ...]
    write_slots: tuple[int, ...]

    @property
    def bounds(self) -> list[int]:
        """Cumulative lengths: each sequence's first token, then the total."""
        return np.cumsum([0, *self.lengths]).tolist()

    @property
    def arrays(self) -> Arrays:
        return {
            "cu_seqlens": int32(self.bounds),
            "read_slots": int32(self.read_slots),
            "write_slots": int32(self.write_slots),
        }


def int32(values: Sequence[int]) -> mx.array:
    return mx.array(np.array(values, np.int32))


def ragged_batch(lengths: Sequence[int], seed: int = 0) -> Batch:
    """Batch whose sequences own three slots each.

    A sequence reads one of its slots or none. It may write the slot that it reads, and may write a
    slot twice.
    """
    rng = np.random.default_rng(seed)
    slots = rng.permutation(3 * len(lengths)).reshape(-1, 3)
    reads = [int(own[0]) if s % 3 != 1 else -1 for s, own in enumerate(slots)]
    writes = [
        int(slot)
        for own, length in zip(slots, lengths, strict=True)
        for slot in [*rng.choice([-1, *own], length - 1), own[int(rng.integers(3))]]
    ]
    return Batch(tuple(lengths), tuple(reads), tuple(writes))


def conv_problem(K: int, C: int, batch: Batch, dtype: mx.Dtype, by_tap: bool = False) -> Arrays:
    """Arguments of `causal_conv1d`; `by_tap` stores the C×K weight as K×C."""
    weight = random(K, C, dtype=dtype).T if by_tap else random(C, K, dtype=dtype)
    x, states = random(sum(batch.lengths), C, dtype=dtype), random(SLOTS, K - 1, C, dtype=dtype)
    return {"x": x, "weight": weight, "conv_states": states, **batch.arrays}


def delta_problem(H_k: int, H_v: int, D_k: int, D_v: int, batch: Batch, dtype: mx.Dtype) -> Arrays:
    """Arguments of `gated_delta_rule` except num_k_heads."""
    T = sum(batch.lengths)
    return {
        "qkv": random(T, 2 * H_k * D_k + H_v * D_v),
        "a": random(T, H_v, dtype=dtype),
        "b": random(T, H_v, dtype=dtype),
        "A_log": random(H_v),
        "dt_bias": random(H_v),
        "states": random(SLOTS, H_v, D_k, D_v),
        **batch.arrays,
    }


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


@dataclass(frozen=True)
class Recurrence:
    """A recurrent operation.

    Attributes:
        problem: arguments of small sizes, given a batch and a dtype.
        states: name of the argument with the states.
        tokens: arguments with a row per token.
        options: further arguments of every call.
    """

    name: str
    problem: Callable[[Batch, mx.Dtype], Arrays]
    states: str
    tokens: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def reference(self, **arguments: Any) -> tuple[mx.array, mx.array]:
        """Readable reference, which computes in float32."""
        return getattr(attention, f"{self.name}_reference")(**self.options | arguments)

    def lazy(self, **arguments: Any) -> tuple[mx.array, mx.array]:
        """Results that are not evaluated: outputs and new states."""
        return getattr(kernels, self.name)(**self.options | arguments)

    def __call__(self, **arguments: Any) -> tuple[mx.array, mx.array]:
        results = self.lazy(**arguments)
        mx.eval(results)
        return results


CONV = Recurrence(
    "causal_conv1d",
    lambda batch, dtype: conv_problem(4, 40, batch, dtype),
    states="conv_states",
    tokens=("x",),
)
DELTA = Recurrence(
    "gated_delta_rule",
    lambda batch, dtype: delta_problem(1, 2, 24, 40, batch, dtype),
    states="states",
    tokens=("qkv", "a", "b"),
    options={"num_k_heads": 1},
)


def assert_chunks_are_bitwise_equal(
    op: Recurrence, chunk: int, dtype: mx.Dtype, **options: Any
) -> None:
    """Compares one step of 12 tokens with steps of `chunk` tokens beside another sequence.

    With `overwrite=True`, the operation must have the only reference to the states.
    """
    whole = op.problem(Batch((12,), (2,), (-1,) * 11 + (2,)), dtype)
    expected, last = op(**whole, **options | {"overwrite": False})
    states, rows = whole[op.states] + 0, []
    for t in range(0, 12, chunk):
        n = min(chunk, 12 - t)
        step = Batch((3, n), (5, 2), (-1, 5, -1) + (-1,) * (n - 1) + (2,))
        arrays = op.problem(step, dtype)
        arrays |= {name: x for name, x in whole.items() if name not in (*op.tokens, *step.arrays)}
        for name in op.tokens:
            arrays[name] = mx.concatenate([arrays[name][:3], whole[name][t : t + n]])
        arrays[op.states] = states
        del states
        part, states = op.lazy(**arrays, **options)
        del arrays
        mx.eval(part, states)
        rows.append(part[3:])
    assert_same_bits(mx.concatenate(rows), expected, "outputs")
    assert_same_bits(states[2], last[2], "state")
