"""Cases of `benchmark.ops`: Gated DeltaNet at Qwen3.5-0.8B's shapes.

A decoding step reads and writes a 1 MB state per layer and sequence. Successive calls use different
slots, so the states come from memory, not a cache, as in a model with many layers.
"""

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np

from .op_cases import EPS, POOL_BYTES, Case, ops, random

H, D, K = 16, 128, 4  # number of key or value heads, head size, convolution width
C = 3 * H * D
SHAPES = ((1, 1), (16, 1), (1, 512))  # (sequences, tokens per sequence)
STATE = 4 * H * D * D  # bytes of a layer's float32 state


def in_place(state: mx.array, function: Callable[..., tuple[mx.array, mx.array]]) -> Any:
    """Gives a function the only reference to the states, for in-place updates."""
    kept = [state]

    def call(*arguments: mx.array) -> mx.array:
        y, new = function(kept.pop(), *arguments)
        kept.append(new)
        return y

    return call


def slots_of(B: int, L: int, slots: int) -> list[tuple[mx.array, ...]]:
    """(cu_seqlens, read_slots, write_slots) of each call; the calls use all slots."""
    calls = []
    for first in range(0, slots, B):
        chosen = np.arange(first, first + B, dtype=np.int32)
        writes = np.full((B, L), -1, np.int32)
        writes[:, -1] = chosen
        bounds = np.arange(B + 1, dtype=np.int32) * L
        calls.append(tuple(mx.array(x) for x in (bounds, chosen, writes.reshape(-1))))
    mx.eval(calls)
    return calls


def causal_conv1d_cases() -> Iterator[Case]:
    """Convolution of queries, keys and values."""
    weight = mx.contiguous(random(C, K).T).T  # stored K×C
    for B, L in SHAPES:
        T = B * L
        x, past = random(T, C), random(1, K - 1, C)
        yield Case(
            "causal_conv1d",
            f"{B}×{L} × {C}×{K}",
            C * (T * 6 + B * (K - 1) * 4 + K * 2),
            2.0 * T * C * K,
            [(x, *slots) for slots in slots_of(B, L, 16)],
            in_place(
                random(16, K - 1, C),
                lambda states, x, *slots: ops.causal_conv1d(x, weight, states, *slots),
            ),
            (lambda x, *_, past=past: mlx_conv(x, weight, past)) if B == 1 else None,
            mlx_is_slow=True,
        )


def mlx_conv(x: mx.array, weight: mx.array, past: mx.array) -> mx.array:
    """MLX's convolution of one sequence."""
    inputs = mx.concatenate([past, x[None]], axis=1)
    return silu(mx.conv1d(inputs, weight[:, :, None], groups=C))


def silu(x: mx.array) -> mx.array:
    """SiLU computed with MLX's operations."""
    return x * mx.sigmoid(x)


def gated_delta_rule_cases() -> Iterator[Case]:
    """Recurrence of a layer; one token is also computed with MLX's operations."""
    A_log, dt_bias = mx.zeros((H,)), mx.zeros((H,))
    for B, L in SHAPES:
        T, slots = B * L, POOL_BYTES // STATE // 16 * 16
        qkv = random(T, C).astype(mx.float32)
        gates, state = (random(T, H), random(T, H)), random(1, H, D, D).astype(mx.float32)
        mx.eval(qkv, state)
        yield Case(
            "gated_delta_rule",
            f"{B}×{L} × {H}×{D}×{D}",
            2.0 * B * STATE + 4 * T * (C + H * D),
            8.0 * T * H * D * D,
            [(qkv, *gates, *slots) for slots in slots_of(B, L, slots if L == 1 else 2)],
            in_place(
                mx.random.normal((slots, H, D, D)),
                lambda states, qkv, a, b, *slots: ops.gated_delta_rule(
                    qkv, a, b, A_log, dt_bias, states, *slots, H
                ),
            ),
            (lambda qkv, a, b, *_, state=state: mlx_delta_rule(qkv, a, b, state))
            if T == 1
            else None,
        )


def mlx_delta_rule(qkv: mx.array, a: mx.array, b: mx.array, state: mx.array) -> Any:
    """Recurrence for one token, computed with MLX's operations; the state is 1×H×D×D."""
    q, k, v = (x.reshape(-1, H, D) for x in mx.split(qkv, 3, axis=-1))
    q, k = (x * mx.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    decay = mx.exp(-mx.logaddexp(a.astype(mx.float32), mx.array(0.0)))[..., None, None]
    state = state * decay
    error = v - (state * k[..., None]).sum(-2)
    state = state + k[..., None] * (mx.sigmoid(b)[..., None] * error)[..., None, :]
    return (state * (q * D**-0.5)[..., None]).sum(-2), state


def gated_rms_norm_cases() -> Iterator[Case]:
    """Norm and gate of the heads' outputs."""
    weight = random(D)
    for M in (1, 16, 512):
        o = random(M, H, D).astype(mx.float32)
        mx.eval(o)
        yield Case(
            "gated_rms_norm",
            f"{M}×{H}×{D}",
            8.0 * M * H * D,
            9.0 * M * H * D,
            [(o, random(M, H, D))],
            lambda o, z: ops.gated_rms_norm(o, z, weight, EPS),
            lambda o, z: (mx.fast.rms_norm(o, weight, EPS) * silu(z)).astype(z.dtype),
        )


def sigmoid_gate_cases() -> Iterator[Case]:
    """Gate of the attention output, 8 heads of size 256."""
    for M in (1, 16, 512):
        yield Case(
            "sigmoid_gate",
            f"{M}×8×256",
            6.0 * M * 2048,
            5.0 * M * 2048,
            [(random(M, 8, 256), random(M, 8, 2, 256)[:, :, 1])],
            lambda x, gate: ops.sigmoid_gate(x, gate),
            lambda x, gate: x * mx.sigmoid(gate),
        )


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "causal_conv1d": causal_conv1d_cases,
    "gated_delta_rule": gated_delta_rule_cases,
    "gated_rms_norm": gated_rms_norm_cases,
    "sigmoid_gate": sigmoid_gate_cases,
}
