"""Week 2's attention: cached keys and values, in plain MLX or one kernel."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from .. import kernels
from ..attention import flash_attention, scaled_dot_product_attention_grouped
from ..kv_cache import TinyKvCache
from ..quantize import project, project_each
from .weights import layer_weight

CosSin = tuple[mx.array, mx.array]  # cosines and sines of the new tokens' RoPE angles
# Attention backend: (query B×H_q×L×D, key B×H×L×D, value, layer cache, scale) -> B×H_q×L×D.
# Appends the new keys and values to the cache and attends to its contents.
AttentionFn = Callable[[mx.array, mx.array, mx.array, Any, float], mx.array]


class Qwen3MultiHeadAttention:
    """Week 1's attention with a KV cache and quantized or plain weights.

    Args:
        args, mlx_attention: configuration and layer of an `mlx_lm` model.
        dtype: dtype of the activations.
    """

    def __init__(self, args: Any, mlx_attention: Any, dtype: mx.Dtype, attend: AttentionFn):
        self.num_heads = args.num_attention_heads
        self.num_kv_heads = args.num_key_value_heads
        self.head_dim = args.head_dim
        self.scale = args.head_dim**-0.5
        self.wq = layer_weight(mlx_attention.q_proj)
        self.wk = layer_weight(mlx_attention.k_proj)
        self.wv = layer_weight(mlx_attention.v_proj)
        self.wo = layer_weight(mlx_attention.o_proj)
        self.q_norm = mlx_attention.q_norm.weight.astype(dtype)
        self.k_norm = mlx_attention.k_norm.weight.astype(dtype)
        self.eps = args.rms_norm_eps
        self._attend = attend

    def __call__(self, x: mx.array, cos_sin: CosSin, cache: Any) -> mx.array:
        """Attends from the new tokens to cached and new tokens.

        Args:
            x: B×L×E, the new tokens; shape and dtype of the result.
            cos_sin: cosines and sines for the tokens' positions, from `RoPE.cos_sin`.
            cache: this layer's KV cache.
        """
        # [task 2.1.2 attention]
        B, L, _ = x.shape
        H_q, H, D = self.num_heads, self.num_kv_heads, self.head_dim
        query, key, value = project_each(x, (self.wq, self.wk, self.wv))
        query = query.reshape(B, L, H_q, D)
        key = key.reshape(B, L, H, D)
        value = value.reshape(B, L, H, D).swapaxes(1, 2)  # B×H×L×D
        query = kernels.qk_norm_rope(query, self.q_norm, self.eps, *cos_sin)  # B×H_q×L×D
        key = kernels.qk_norm_rope(key, self.k_norm, self.eps, *cos_sin)  # B×H×L×D
        attended = self._attend(query, key, value, cache, self.scale)  # B×H_q×L×D
        return project(attended.swapaxes(1, 2).reshape(B, L, H_q * D), self.wo)
        # [/task 2.1.2 attention]


def attend_flash(
    query: mx.array, key: mx.array, value: mx.array, cache: TinyKvCache, scale: float
) -> mx.array:
    """Attention backend: flash attention, which reads the cache in place.

    The engine's, over pages, is in `models/families/attention_backends.py`.
    """
    # [task 2.5.4]
    keys, values, context_lens = cache.append(key, value)  # B×H×capacity×D
    return flash_attention(query, keys, values, scale, "causal", context_lens)
    # [/task 2.5.4]


def attend_grouped(
    query: mx.array, key: mx.array, value: mx.array, cache: TinyKvCache, scale: float
) -> mx.array:
    """Attention backend in plain MLX, computed in float32."""
    # [task 2.1.2 grouped]
    keys, values, _, mask = cache.update_and_fetch(
        key, value, mask_length=key.shape[2], mask="causal"
    )  # B×H×S×D
    return scaled_dot_product_attention_grouped(
        query.astype(mx.float32),
        keys.astype(mx.float32),
        values.astype(mx.float32),
        scale=scale,
        mask=mask,
    ).astype(query.dtype)
    # [/task 2.1.2 grouped]
