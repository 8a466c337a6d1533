"""A small hybrid Qwen3.5 in PyTorch, for training.

Three of four layers are Gated DeltaNets, every fourth is gated attention. A batch is R rows of L
tokens, each row a concatenation of examples ("documents"). A document starts at position 0, and no
layer carries information from one document to the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from .gated_delta import gated_delta_rule
from .model import RMSNorm, apply_rope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .model import Group

RESET = -40.0  # log of the decay at a document's first token, which clears the state
NORM_EPS = 1e-6  # added to the sum of squares in the L2 norm of queries and keys


@dataclass(frozen=True)
class HybridConfig:
    """Model dimensions. The comments are the letters that denote them in shapes."""

    hidden_size: int = 256  # E
    num_layers: int = 8
    num_heads: int = 4  # H_q
    num_kv_heads: int = 2  # H
    head_dim: int = 128  # D
    intermediate_size: int = 768  # I
    num_key_heads: int = 2  # H_k
    num_value_heads: int = 4  # H_v
    key_head_dim: int = 128  # D_k
    value_head_dim: int = 64  # D_v
    conv_kernel_dim: int = 4  # K
    full_attention_interval: int = 4
    vocab_size: int = 4096  # V
    max_position_embeddings: int = 2048
    rope_theta: float = 100_000.0
    partial_rotary_factor: float = 0.25
    rms_norm_eps: float = 1e-6

    @property
    def rotary_dim(self) -> int:
        """Number of leading features per head that RoPE rotates."""
        return int(self.head_dim * self.partial_rotary_factor)


class GatedDeltaNet(nn.Module):
    """Linear attention with recurrent state. Its parameters have the checkpoint's names."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.config = config
        hidden, heads = config.hidden_size, config.num_value_heads
        self.key_dim = config.num_key_heads * config.key_head_dim
        self.value_dim = heads * config.value_head_dim
        channels = 2 * self.key_dim + self.value_dim
        self.in_proj_qkv = nn.Linear(hidden, channels, bias=False)
        self.in_proj_z = nn.Linear(hidden, self.value_dim, bias=False)
        self.in_proj_b = nn.Linear(hidden, heads, bias=False)
        self.in_proj_a = nn.Linear(hidden, heads, bias=False)
        self.conv1d = nn.Conv1d(
            channels, channels, config.conv_kernel_dim, groups=channels, bias=False
        )
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.dt_bias = nn.Parameter(torch.zeros(heads))
        self.norm = RMSNorm(config.value_head_dim, config.rms_norm_eps)
        self.out_proj = nn.Linear(self.value_dim, hidden, bias=False)

    def convolve(self, x: Tensor, positions: Tensor) -> Tensor:
        """Causal convolution within each document, then SiLU. x: R×L×C -> R×L×C float32."""
        weight = self.conv1d.weight[:, 0].float()  # C×K, the current token's tap last
        total = x.float() * weight[:, -1]
        for age in range(1, weight.shape[1]):
            past = functional.pad(x[:, :-age], (0, 0, age, 0))
            past = past * (positions >= age)[..., None]
            total = total + past.float() * weight[:, -1 - age]
        return functional.silu(total)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x: R×L×E; positions: R×L -> R×L×E."""
        config = self.config
        qkv = self.convolve(self.in_proj_qkv(x), positions)
        q, k, v = qkv.split((self.key_dim, self.key_dim, self.value_dim), dim=-1)
        q, k = (y.unflatten(-1, (config.num_key_heads, -1)) for y in (q, k))
        q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + NORM_EPS) for y in (q, k))
        group = config.num_value_heads // config.num_key_heads
        q, k = (y.repeat_interleave(group, dim=2) for y in (q * config.key_head_dim**-0.5, k))
        v = v.unflatten(-1, (config.num_value_heads, -1))
        step = functional.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        log_gamma = -self.A_log.float().exp() * step
        log_gamma = torch.where((positions == 0)[..., None], RESET, log_gamma)
        o = gated_delta_rule(q, k, v, self.in_proj_b(x).float().sigmoid(), log_gamma)
        o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + config.rms_norm_eps)
        z = self.in_proj_z(x).float().view(o.shape)
        y = o * self.norm.weight.float() * functional.silu(z)
        return self.out_proj(y.flatten(2).to(x.dtype))


class GatedAttention(nn.Module):
    """Causal attention within each document, with a gate per output feature."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.config = config
        hidden, dim = config.hidden_size, config.head_dim
        queries, keys = config.num_heads * dim, config.num_kv_heads * dim
        self.q_proj = nn.Linear(hidden, 2 * queries, bias=False)
        self.k_proj = nn.Linear(hidden, keys, bias=False)
        self.v_proj = nn.Linear(hidden, keys, bias=False)
        self.q_norm = RMSNorm(dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(dim, config.rms_norm_eps)
        self.o_proj = nn.Linear(queries, hidden, bias=False)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotates the first features of each head. x: R×L×H×D."""
        rotary, rest = x.split((self.config.rotary_dim, x.shape[-1] - self.config.rotary_dim), -1)
        return torch.cat((apply_rope(rotary, cos, sin), rest), dim=-1)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """x: R×L×E; cos, sin: R×L×1×(rotary_dim/2); mask: R×1×L×L, additive -> R×L×E."""
        config = self.config
        heads = (-1, config.head_dim)
        query, gate = self.q_proj(x).unflatten(-1, (config.num_heads, -1)).chunk(2, dim=-1)
        query = self.rotate(self.q_norm(query), cos, sin)
        key = self.rotate(self.k_norm(self.k_proj(x).unflatten(-1, heads)), cos, sin)
        value = self.v_proj(x).unflatten(-1, heads)
        group = config.num_heads // config.num_kv_heads
        key, value = (y.repeat_interleave(group, dim=2) for y in (key, value))
        query, key, value = (y.transpose(1, 2) for y in (query, key, value))
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        out = out.transpose(1, 2) * gate.sigmoid()
        return self.o_proj(out.flatten(2))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: ...×E -> ...×E."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Gated DeltaNet or gated attention, then an MLP."""

    def __init__(self, config: HybridConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.is_linear = (index + 1) % config.full_attention_interval != 0
        if self.is_linear:
            self.linear_attn = GatedDeltaNet(config)
        else:
            self.self_attn = GatedAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, positions: Tensor, rope: tuple, mask: Tensor) -> Tensor:
        """x: R×L×E -> R×L×E."""
        y = self.input_layernorm(x)
        x = x + (
            self.linear_attn(y, positions) if self.is_linear else self.self_attn(y, *rope, mask)
        )
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen3_5(nn.Module):  # noqa: N801
    """Maps token ids to hidden states, with the interface of `model.Qwen3`."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, index) for index in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Initializes matrices like `model.Qwen3`, decays in exp(-1.6)..0.999."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name.endswith("A_log"):
                parameter.uniform_(1, 16, generator=generator).log_()
            elif name.endswith("dt_bias"):
                step = parameter.uniform_(math.log(1e-3), math.log(0.1), generator=generator).exp()
                parameter.copy_(step + torch.log(-torch.expm1(-step)))  # inverse of softplus
            elif parameter.dim() > 1:
                std = 0.02 if name.startswith("embed") else parameter[0].numel() ** -0.5
                if "o_proj" in name or "out_proj" in name or "down_proj" in name:
                    std *= (2 * self.config.num_layers) ** -0.5
                nn.init.normal_(parameter, std=std, generator=generator)

    def cast(self, dtype: torch.dtype) -> Qwen3_5:
        """Casts all parameters except `A_log`, which is float32 in checkpoints."""
        for name, parameter in self.named_parameters():
            if not name.endswith("A_log"):
                parameter.data = parameter.data.to(dtype)
        return self

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each R×L×1×(rotary_dim/2) float32. positions: R×L."""
        half = self.config.rotary_dim // 2
        exponents = -torch.arange(half, dtype=torch.float32, device=positions.device) / half
        angles = positions[..., None, None].float() * self.config.rope_theta**exponents
        return angles.cos(), angles.sin()

    def forward(self, ids: Tensor, positions: Tensor, groups: Sequence[Group]) -> Tensor:
        """ids, positions: T = R·L; groups: [(R, L)] -> hidden states T×E after the final norm."""
        ids, positions = ids.view(groups[0]), positions.view(groups[0])
        x = self.embed_tokens(ids)
        documents = (positions == 0).cumsum(1)
        is_visible = (documents[:, :, None] == documents[:, None, :]).tril()
        mask = torch.zeros_like(is_visible, dtype=x.dtype).masked_fill(~is_visible, -torch.inf)
        rope = self.rope(positions)
        for layer in self.layers:
            x = layer(x, positions, rope, mask[:, None])
        return self.norm(x).flatten(0, 1)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: N×E, of N positions -> N×V; the embedding is also the LM head."""
        return functional.linear(hidden, self.embed_tokens.weight)
