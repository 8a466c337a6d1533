"""Recurrent operations: random ragged batches, float64 references, chunks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from tests.support import assert_same_bits, random
from tiny_llm import kernels

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


def causal_conv1d(
    x: np.ndarray, weight: np.ndarray, states: np.ndarray, batch: Batch
) -> tuple[np.ndarray, np.ndarray]:
    """Reference implementation: returns y and the new states."""
    x, new, out = x.astype(np.float64), states.copy(), np.zeros(x.shape)
    width, bounds = weight.shape[1], batch.bounds
    for s, slot in enumerate(batch.read_slots):
        inputs = states[slot] if slot >= 0 else np.zeros((width - 1, x.shape[1]))
        for t in range(bounds[s], bounds[s + 1]):
            inputs = np.concatenate([inputs, x[t : t + 1]])[-width:]
            total = (weight.T * inputs).sum(0)
            out[t] = total * sigmoid(total)
            inputs = inputs[1:]
            if batch.write_slots[t] >= 0:
                new[batch.write_slots[t]] = inputs
    return out, new


def gated_delta_rule(
    qkv: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    A_log: np.ndarray,
    dt_bias: np.ndarray,
    states: np.ndarray,
    num_k_heads: int,
    batch: Batch,
) -> tuple[np.ndarray, np.ndarray]:
    """Reference implementation: returns o and the new states."""
    _, H_v, D_k, D_v = states.shape
    T, keys = len(qkv), num_k_heads * D_k
    q, k, v = np.split(qkv.astype(np.float64), [keys, 2 * keys], axis=1)
    q, k = (
        np.repeat(x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6), H_v // num_k_heads, axis=1)
        for x in (x.reshape(T, num_k_heads, D_k) for x in (q, k))
    )
    q, v, beta = q / np.sqrt(D_k), v.reshape(T, H_v, D_v), sigmoid(b.astype(np.float64))
    decay = np.exp(-np.exp(A_log) * np.logaddexp(0, a.astype(np.float64) + dt_bias))
    new, out = states.astype(np.float64), np.zeros((T, H_v, D_v))
    bounds = batch.bounds
    for s, slot in enumerate(batch.read_slots):
        state = states[slot].astype(np.float64) if slot >= 0 else np.zeros((H_v, D_k, D_v))
        for t in range(bounds[s], bounds[s + 1]):
            state = state * decay[t][:, None, None]
            delta = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
            state = state + k[t][:, :, None] * delta[:, None]
            out[t] = np.einsum("hkv,hk->hv", state, q[t])
            if batch.write_slots[t] >= 0:
                new[batch.write_slots[t]] = state
    return out, new


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
