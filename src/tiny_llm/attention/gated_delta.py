"""Gated DeltaNet: linear attention with a recurrent state, token by token.

Attention caches a key and a value per token. DeltaNet keeps one D_k×D_v matrix S per value head,
which maps keys to values. Each token

    S ← γ S                 decays the state,
    δ = β (v − Sᵀk)         compares the token's value with the state's prediction for its key,
    S ← S + k δᵀ            corrects the state by a fraction β of the error (the delta rule),
    o = Sᵀq                 and reads the state with the token's query.

Memory and time per token are therefore independent of the context length. A short causal
convolution before the rule mixes each channel over the last K tokens; its state is the last K − 1
inputs.

States are stored in *slots*, and a step's tokens form a ragged batch: each sequence starts from the
state in its read slot, and every token can store the resulting state in its write slot.

Functions named `…_reference` are in plain MLX. Each has the same contract as the kernel whose name
lacks the suffix, for example `gated_delta_rule`. All functions compute in float32.

Source: Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule" (2024), arXiv
2412.06464.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import mlx.core as mx

NORM_EPS = 1e-6  # added to the sum of squares in the L2 norm of queries and keys


def causal_conv1d_sequence(
    x: mx.array, weight: mx.array, tail: mx.array
) -> tuple[mx.array, list[mx.array]]:
    """Causal per-channel convolution over one sequence, then SiLU.

    Args:
        x: L×C: L tokens, C channels.
        weight: C×K: K taps per channel, the oldest token's tap first.
        tail: (K−1)×C in the dtype of `x`, the inputs before the first token, oldest first.

    Returns:
        (outputs L×C float32, list of L tails: the last K−1 inputs up to each token).
    """
    L, K = x.shape[0], weight.shape[1]
    # [task 6.4.1 conv]
    inputs = mx.concatenate([tail, x])  # (K−1+L)×C
    total = mx.zeros(x.shape)
    for j in range(K):
        total = total + inputs[j : j + L].astype(mx.float32) * weight[:, j].astype(mx.float32)
    tails = [inputs[i + 1 : i + K] for i in range(L)]
    return total * mx.sigmoid(total), tails
    # [/task 6.4.1 conv]


def delta_gates(
    a: mx.array, b: mx.array, A_log: mx.array, dt_bias: mx.array
) -> tuple[mx.array, mx.array]:
    """Computes the gates (β, γ), both T×H_v float32.

    The correction is β = sigmoid(b), the decay γ = exp(−exp(A_log) · softplus(a + dt_bias)).

    Args:
        a, b: T×H_v: projections of T tokens, for H_v value heads.
        A_log, dt_bias: H_v float32, parameters of the decay.
    """
    # [task 6.4.2 gates]
    beta = mx.sigmoid(b.astype(mx.float32))
    softplus = mx.logaddexp(a.astype(mx.float32) + dt_bias, 0)
    return beta, mx.exp(-mx.exp(A_log) * softplus)
    # [/task 6.4.2 gates]


def query_key_value_heads(
    qkv: mx.array, num_k_heads: int, D_k: int, num_v_heads: int, D_v: int
) -> tuple[mx.array, mx.array, mx.array]:
    """Splits `qkv` into q, k and v for each value head; normalizes q and k.

    Value head h uses query and key head h // (H_v/H_k).

    Args:
        qkv: T×(2·H_k·D_k + H_v·D_v) float32: query, key and value heads.

    Returns:
        (q T×H_v×D_k, k T×H_v×D_k, v T×H_v×D_v): keys of norm 1, queries of norm 1/√D_k.
    """
    T, width = qkv.shape[0], num_k_heads * D_k
    # [task 6.4.2 heads]
    q, k, v = mx.split(qkv, [width, 2 * width], axis=-1)
    q = _l2_normalize(q.reshape(T, num_k_heads, D_k)) * D_k**-0.5
    k = _l2_normalize(k.reshape(T, num_k_heads, D_k))
    q, k = (mx.repeat(x, num_v_heads // num_k_heads, axis=1) for x in (q, k))
    return q, k, v.reshape(T, num_v_heads, D_v)
    # [/task 6.4.2 heads]


def delta_rule_step(
    state: mx.array, q: mx.array, k: mx.array, v: mx.array, beta: mx.array, gamma: mx.array
) -> tuple[mx.array, mx.array]:
    """Applies the gated delta rule to one token, all heads at once.

    Args:
        state: H_v×D_k×D_v: one matrix per value head, from keys of size D_k to values of size D_v.
        q, k: H_v×D_k, normalized.
        v: H_v×D_v.
        beta: H_v, the fraction of the error to correct, 0 to 1.
        gamma: H_v, the decay, 0 to 1.

    Returns:
        (new state, output H_v×D_v).
    """
    # [task 6.4.3 step]
    state = state * gamma[:, None, None]
    predicted = (state * k[:, :, None]).sum(axis=1)  # Sᵀk
    delta = beta[:, None] * (v - predicted)
    state = state + k[:, :, None] * delta[:, None, :]
    return state, (state * q[:, :, None]).sum(axis=1)
    # [/task 6.4.3 step]


def gated_delta_rule_reference(
    qkv: mx.array,
    a: mx.array,
    b: mx.array,
    A_log: mx.array,
    dt_bias: mx.array,
    states: mx.array,
    cu_seqlens: mx.array,
    read_slots: mx.array,
    write_slots: mx.array,
    num_k_heads: int,
) -> tuple[mx.array, mx.array]:
    """Gated delta rule over a ragged batch: T tokens from B sequences.

    Args:
        qkv: T×(2·H_k·D_k + H_v·D_v) float32: query, key and value heads.
        a, b: T×H_v, logits of the decay and of β.
        A_log, dt_bias: H_v float32, parameters of the decay.
        states: slots×H_v×D_k×D_v float32.
        cu_seqlens: B+1 int32, sequence boundaries.
        read_slots: B int32, slot with the state before each sequence's first token; −1 for zeros.
        write_slots: T int32, slot for the state after each token; −1 to not store it.
        num_k_heads: H_k, a divisor of H_v; value head h uses key head h // (H_v/H_k).

    Returns:
        (outputs T×H_v×D_v float32, updated states).
    """
    _, H_v, D_k, D_v = states.shape
    q, k, v = query_key_value_heads(qkv, num_k_heads, D_k, H_v, D_v)
    beta, gamma = delta_gates(a, b, A_log, dt_bias)

    outputs: list[mx.array] = []
    written: dict[int, mx.array] = {}
    slots = _integers(write_slots)
    for read, tokens in _sequences(cu_seqlens, read_slots):
        state = states[read] if read >= 0 else mx.zeros(states.shape[1:])
        for t in tokens:
            state, output = delta_rule_step(state, q[t], k[t], v[t], beta[t], gamma[t])
            outputs.append(output)
            written[slots[t]] = state
    return mx.stack(outputs), _store(states, written)


def causal_conv1d_reference(
    x: mx.array,
    weight: mx.array,
    conv_states: mx.array,
    cu_seqlens: mx.array,
    read_slots: mx.array,
    write_slots: mx.array,
) -> tuple[mx.array, mx.array]:
    """Causal per-channel convolution over the last K tokens, then SiLU.

    Args:
        x: T×C: T tokens, C channels.
        weight: C×K, the oldest token's tap first.
        conv_states: slots×(K−1)×C in the dtype of `x`, the last K−1 inputs, oldest first.
        cu_seqlens, read_slots, write_slots: see `gated_delta_rule_reference`.

    Returns:
        (outputs T×C float32, updated states).
    """
    outputs: list[mx.array] = []
    written: dict[int, mx.array] = {}
    slots = _integers(write_slots)
    for read, tokens in _sequences(cu_seqlens, read_slots):
        tail = conv_states[read] if read >= 0 else mx.zeros(conv_states.shape[1:], x.dtype)
        span = slice(tokens.start, tokens.stop)
        y, tails = causal_conv1d_sequence(x[span], weight, tail)
        outputs.append(y)
        written.update(zip(slots[span], tails, strict=True))
    return mx.concatenate(outputs), _store(conv_states, written)


def gated_rms_norm_reference(o: mx.array, z: mx.array, weight: mx.array, eps: float) -> mx.array:
    """RMSNorm per head times SiLU of a gate; rounded once, to the gate's dtype.

    Args:
        o: T×H_v×D_v float32.
        z: T×H_v×D_v, the gate.
        weight: D_v.
        eps: added to the mean of squares.
    """
    # [task 6.4.4 norm]
    gate = z.astype(mx.float32)
    normed = o * mx.rsqrt(mx.mean(o * o, axis=-1, keepdims=True) + eps)
    return (normed * weight.astype(mx.float32) * (gate * mx.sigmoid(gate))).astype(z.dtype)
    # [/task 6.4.4 norm]


def _l2_normalize(x: mx.array) -> mx.array:
    # [task 6.4.2 unit]
    return x * mx.rsqrt(mx.sum(x * x, axis=-1, keepdims=True) + NORM_EPS)
    # [/task 6.4.2 unit]


def _sequences(cu_seqlens: mx.array, read_slots: mx.array) -> Iterator[tuple[int, range]]:
    """Yields the read slot and the token indices of each sequence."""
    bounds = itertools.pairwise(_integers(cu_seqlens))
    for slot, (first, end) in zip(_integers(read_slots), bounds, strict=True):
        yield slot, range(first, end)


def _integers(array: mx.array) -> list[int]:
    numbers: Any = array.tolist()
    return list(numbers)


def _store(states: mx.array, written: dict[int, mx.array]) -> mx.array:
    """Copies `states` and replaces the written slots; ignores slot −1."""
    written.pop(-1, None)
    if not written:
        return states
    states = mx.array(states)
    states[mx.array(list(written))] = mx.stack(list(written.values()))
    return states
