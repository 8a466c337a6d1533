"""Gated delta rule for training, parallel over the tokens of a chunk.

`tiny_llm/attention/gated_delta.py` explains the rule token by token: with key k, value v, decay γ
and correction β, the state S (D_k×D_v) becomes γ S + k δᵀ with δ = β (v − γ Sᵀk), and o = Sᵀq.

Let G be the cumulative sum of log γ within a chunk, and S the state before it. Then the chunk's
corrections Δ (one row per token) solve a triangular system, and the rest is matmuls:

    (I + A) Δ = β V − β exp(G) K S      A_ij = β_i exp(G_i − G_j) k_i·k_j for j < i
    O = exp(G) Q S + B Δ                B_ij = exp(G_i − G_j) q_i·k_j for j ≤ i
    S' = exp(G_last) S + K̃ᵀ Δ           K̃_j = exp(G_last − G_j) k_j

With T = (I + A)⁻¹, U = T β V and W = T β exp(G) K, the new state is affine in the old one:
S' = (exp(G_last) I − K̃ᵀ W) S + K̃ᵀ U. Hence the loop over chunks is one matmul per chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 64  # tokens, a power of two


class UnitTriangularInverse(torch.autograd.Function):
    """(I + A)⁻¹ for strictly lower triangular A, ...×C×C with C a power of two.

    Inverts diagonal blocks of doubling size: [[P, 0], [R, Q]]⁻¹ = [[P⁻¹, 0], [−Q⁻¹ R P⁻¹, Q⁻¹]].
    """

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        """lower: ...×C×C, strictly lower triangular."""
        *batch, size, _ = lower.shape
        inverse = torch.eye(size, dtype=lower.dtype, device=lower.device).repeat(*batch, 1, 1)
        block = 1
        while block < size:
            pairs = (*batch, size // (2 * block), 2 * block)
            # Views of the diagonal blocks of size 2·block: ...×pairs×(2·block)×(2·block).
            blocks, inverses = (
                x.view(*pairs, *pairs[-2:]).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
                for x in (lower, inverse)
            )
            first, second = (inverses[..., :block, :block], inverses[..., block:, block:])
            inverses[..., block:, :block] = -second @ blocks[..., block:, :block] @ first
            block *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """The gradient with respect to `lower`."""
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return -(transposed @ gradients[0] @ transposed).tril(-1)


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_gamma: Tensor) -> Tensor:
    """Applies the rule to R rows of L tokens from zero states: R×L×H×D_v outputs.

    Args:
        q, k: R×L×H×D_k float32, normalized; L is a multiple of `CHUNK`.
        v: R×L×H×D_v float32.
        beta, log_gamma: R×L×H float32.
    """
    # R×H×N×C×D: N chunks of C tokens.
    q, k, v = (x.transpose(1, 2).unflatten(2, (-1, CHUNK)) for x in (q, k, v))
    beta, log_gamma = (x.transpose(1, 2).unflatten(2, (-1, CHUNK)) for x in (beta, log_gamma))
    decay = log_gamma.cumsum(-1)  # G, R×H×N×C
    future = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    between = (decay[..., :, None] - decay[..., None, :]).masked_fill(future, -torch.inf).exp()
    keys = k.transpose(-1, -2)
    inverse = UnitTriangularInverse.apply((beta[..., None] * (k @ keys) * between).tril(-1))
    from_start = decay.exp()[..., None]
    to_end = (decay[..., -1:] - decay).exp()[..., None]
    corrections = inverse @ (beta[..., None] * v)  # U
    reads = inverse @ (beta[..., None] * from_start * k)  # W
    writes = (k * to_end).transpose(-1, -2)  # K̃ᵀ
    identity = torch.eye(k.shape[-1], device=q.device)
    transition = from_start[..., -1:, :] * identity - writes @ reads  # R×H×N×D_k×D_k
    added = writes @ corrections  # R×H×N×D_k×D_v
    states = [torch.zeros_like(added[:, :, 0])]
    for each, update in zip(transition.unbind(2)[:-1], added.unbind(2)[:-1], strict=True):
        states.append(each @ states[-1] + update)
    state = torch.stack(states, dim=2)  # the states before each chunk
    delta = corrections - reads @ state
    out = (q * from_start) @ state + ((q @ keys) * between) @ delta
    return out.flatten(2, 3).transpose(1, 2)
