"""A small Qwen3 in PyTorch, for training.

The architecture is Qwen3's: RMSNorm before attention and MLP, QK norm, half-split RoPE,
grouped-query attention, SwiGLU, tied embeddings, no biases.

A batch is a flat sequence of T tokens from many examples. Layers other than attention work per
token and run on all T tokens at once. Attention runs per group: `rows` examples padded to one
`length`. Examples do not attend to each other, and little work is spent on padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Group = tuple[int, int]  # (number of examples, their padded length)
CHUNK = 192  # queries per attention matmul


@dataclass(frozen=True)
class ModelConfig:
    """Model dimensions. The comments are the letters that denote them in shapes."""

    hidden_size: int  # E
    num_layers: int
    num_heads: int  # H_q
    num_kv_heads: int  # H
    intermediate_size: int  # I
    head_dim: int = 128  # D
    vocab_size: int = 4096  # V
    max_position_embeddings: int = 2048
    rope_theta: float = 1_000_000.0
    rms_norm_eps: float = 1e-6


CONFIGS = {
    "target": ModelConfig(
        hidden_size=256, num_layers=8, num_heads=4, num_kv_heads=2, intermediate_size=768
    ),
    "draft": ModelConfig(
        hidden_size=128, num_layers=4, num_heads=2, num_kv_heads=1, intermediate_size=384
    ),
}


class RMSNorm(nn.Module):
    """RMSNorm, with the mean of squares in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x: ... x dim -> the same shape."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight


def rope_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines for all positions: max_position_embeddings x D/2, float32."""
    half = config.head_dim // 2
    frequencies = config.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = torch.outer(torch.arange(config.max_position_embeddings).float(), frequencies)
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies half-split RoPE. x: T x heads x D; cos, sin: T x 1 x D/2."""
    first, second = x.float().chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(x.dtype)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention. query: R x L x H_q x D; key, value: R x L x H x D -> R x L x H_q x D.

    R is the number of examples, L their padded length. Query heads that share a key head are
    stacked along the length, so each key head takes one matmul. On a CPU, for such short sequences,
    this is several times faster than a flash kernel. Queries are processed in chunks, so that long
    sequences skip most masked keys.
    """
    rows, length, num_heads, dim = query.shape
    num_kv_heads = key.shape[2]
    group = num_heads // num_kv_heads
    query = (query * dim**-0.5).transpose(1, 2).reshape(rows * num_kv_heads, group, length, dim)
    key, value = (x.transpose(1, 2).reshape(-1, length, dim) for x in (key, value))
    outputs = []
    for start in range(0, length, CHUNK):
        end = min(start + CHUNK, length)
        chunk = query[:, :, start:end].reshape(-1, group * (end - start), dim)
        scores = torch.bmm(chunk, key[:, :end].transpose(1, 2)).view(-1, group, end - start, end)
        future = torch.full((end - start, end), float("-inf"), dtype=scores.dtype).triu(1 + start)
        weights = torch.softmax(scores + future, dim=-1).view(-1, group * (end - start), end)
        out = torch.bmm(weights, value[:, :end])
        outputs.append(out.view(rows, num_heads, end - start, dim))
    return torch.cat(outputs, dim=2).transpose(1, 2)  # R x L x H_q x D


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, groups: Sequence[Group]) -> Tensor:
    """Attention within each example. q: T x H_q x D; k, v: T x H x D -> T x (H_q*D)."""
    sizes = [rows * length for rows, length in groups]
    outputs = []
    # One split instead of a slice per group, because its gradient is one concatenation.
    for group, *parts in zip(groups, *(x.split(sizes) for x in (q, k, v)), strict=True):
        out = attend(*(part.unflatten(0, group) for part in parts))
        outputs.append(out.flatten(0, 1).flatten(1))
    return torch.cat(outputs)  # T x (H_q*D)


class Block(nn.Module):
    """Transformer block, split around attention so that both halves can be compiled."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        hidden, dim = config.hidden_size, config.head_dim
        queries, keys = config.num_heads * dim, config.num_kv_heads * dim
        self.input_layernorm = RMSNorm(hidden, config.rms_norm_eps)
        self.q_proj = nn.Linear(hidden, queries, bias=False)
        self.k_proj = nn.Linear(hidden, keys, bias=False)
        self.v_proj = nn.Linear(hidden, keys, bias=False)
        self.q_norm = RMSNorm(dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(dim, config.rms_norm_eps)
        self.o_proj = nn.Linear(queries, hidden, bias=False)
        self.post_attention_layernorm = RMSNorm(hidden, config.rms_norm_eps)
        self.gate_proj = nn.Linear(hidden, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, hidden, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x: T x E -> queries T x H_q x D and keys T x H x D, both rotated; values T x H x D."""
        x = self.input_layernorm(x)
        split = (x.shape[0], -1, self.config.head_dim)
        query = self.q_norm(self.q_proj(x).view(split))
        key = self.k_norm(self.k_proj(x).view(split))
        return apply_rope(query, cos, sin), apply_rope(key, cos, sin), self.v_proj(x).view(split)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Adds the attention output, then the MLP output, to the residual stream."""
        x = x + self.o_proj(attended)
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(y)) * self.up_proj(y))


class Qwen3(nn.Module):
    """Maps token ids to hidden states; few positions need logits, so `logits` is separate."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        cos, sin = rope_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._project: Callable = Block.project
        self._finish: Callable = Block.finish

    def init_weights(self, seed: int) -> None:
        """Initializes weights from normal distributions, o_proj and down_proj scaled by depth."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            std = 0.02 if name.startswith("embed") else parameter.shape[1] ** -0.5
            if "o_proj" in name or "down_proj" in name:
                std *= (2 * self.config.num_layers) ** -0.5
            nn.init.normal_(parameter, std=std, generator=generator)

    def compile_halves(self) -> None:
        """Compiles both block halves, which fuses their elementwise operations."""
        self._project = torch.compile(Block.project)
        self._finish = torch.compile(Block.finish)

    def forward(self, ids: Tensor, positions: Tensor, groups: Sequence[Group]) -> Tensor:
        """ids, positions: T -> hidden states T x E after the final norm."""
        x = self.embed_tokens(ids)
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        for layer in self.layers:
            q, k, v = self._project(layer, x, cos, sin)
            x = self._finish(layer, x, grouped_attention(q, k, v, groups))
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: N x E, of N positions -> N x V; the embedding is also the LM head."""
        return functional.linear(hidden, self.embed_tokens.weight)
