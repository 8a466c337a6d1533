"""Qwen3's attention: grouped queries, normalized heads and RoPE."""

import mlx.core as mx

from ..attention import Mask, scaled_dot_product_attention_grouped
from ..basics import linear
from ..layer_norm import RMSNorm
from ..positional_encoding import RoPE


class Qwen3MultiHeadAttention:
    """Qwen3's grouped-query attention: RMSNorm on query and key heads, then RoPE.

    `num_heads * head_dim` may differ from `hidden_size`. Projections have no bias.

    Args:
        hidden_size: E.
        num_heads: H_q.
        num_kv_heads: H; must divide H_q.
        head_dim: D.
        wq: (H_q·D)×E.
        wk, wv: (H·D)×E.
        wo: E×(H_q·D).
        q_norm, k_norm: D, RMSNorm weights of each query and key head.
        max_seq_len: number of RoPE positions.
        theta: RoPE base.
        rms_norm_eps: epsilon for both norms.

    Raises:
        ValueError: H does not divide H_q.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        wq: mx.array,
        wk: mx.array,
        wv: mx.array,
        wo: mx.array,
        q_norm: mx.array,
        k_norm: mx.array,
        max_seq_len: int = 32768,
        theta: int | float = 1000000,
        rms_norm_eps: float = 1e-5,
    ):
        if num_heads % num_kv_heads != 0:
            raise ValueError(
                "Qwen3MultiHeadAttention: num_kv_heads must divide num_heads, got "
                f"{num_kv_heads} and {num_heads}."
            )
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.scale = head_dim**-0.5
        self.wq = wq
        self.wk = wk
        self.wv = wv
        self.wo = wo
        self.q_norm = RMSNorm(head_dim, q_norm, eps=rms_norm_eps)
        self.k_norm = RMSNorm(head_dim, k_norm, eps=rms_norm_eps)
        self.rope = RoPE(head_dim, max_seq_len, base=theta, traditional=False)

    def __call__(self, x: mx.array, mask: Mask = None) -> mx.array:
        """Computes self-attention over complete sequences.

        Scores and their softmax are computed in float32.

        Args:
            x: B×L×E, shape and dtype of the result.
            mask: None, "causal", or an array added to the scores, broadcastable to B×H_q×L×L.
        """
        # [task 1.3.3]
        B, L, _ = x.shape
        H_q, H, D = self.num_heads, self.num_kv_heads, self.head_dim
        query = self.rope(self.q_norm(linear(x, self.wq).reshape(B, L, H_q, D)))
        key = self.rope(self.k_norm(linear(x, self.wk).reshape(B, L, H, D)))
        value = linear(x, self.wv).reshape(B, L, H, D)
        attended = scaled_dot_product_attention_grouped(
            query.swapaxes(1, 2).astype(mx.float32),  # B×H_q×L×D
            key.swapaxes(1, 2).astype(mx.float32),  # B×H×L×D
            value.swapaxes(1, 2).astype(mx.float32),
            scale=self.scale,
            mask=mask,
        ).astype(x.dtype)
        return linear(attended.swapaxes(1, 2).reshape(B, L, H_q * D), self.wo)
        # [/task 1.3.3]
