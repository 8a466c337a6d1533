"""Week 1's Qwen3: the complete model in plain array operations.

Stateless: every call recomputes the complete sequence. Weights are plain bfloat16 matrices,
dequantized when the model is built. Week 2 adds the KV cache and quantized weights.
"""

from typing import Any

import mlx.core as mx

from .attention import Mask, scaled_dot_product_attention_grouped
from .basics import linear, silu
from .embedding import Embedding
from .layer_norm import RMSNorm
from .positional_encoding import RoPE
from .quantize import dequantize_linear


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


class Qwen3MLP:
    """SwiGLU feed-forward layer: w_down(silu(w_gate x) * (w_up x)).

    Source: Shazeer, "GLU Variants Improve Transformer" (2020).

    Args:
        dim: E.
        hidden_dim: I.
        w_gate, w_up: I×E.
        w_down: E×I.
    """

    def __init__(
        self, dim: int, hidden_dim: int, w_gate: mx.array, w_up: mx.array, w_down: mx.array
    ):
        self.dim = dim
        self.hidden_dim = hidden_dim
        self.w_gate = w_gate
        self.w_up = w_up
        self.w_down = w_down

    def __call__(self, x: mx.array) -> mx.array:
        """Applies the MLP: N..×E -> N..×E."""
        # [task 1.4.2 mlp]
        return linear(silu(linear(x, self.w_gate)) * linear(x, self.w_up), self.w_down)
        # [/task 1.4.2 mlp]


class Qwen3TransformerBlock:
    """Pre-norm transformer layer: attention and MLP with residual connections.

    Args:
        num_attention_heads: H_q.
        num_kv_heads: H.
        hidden_size: E.
        head_dim: D.
        intermediate_size: I.
        rms_norm_eps: epsilon for all four norms.
        wq, wk, wv, wo, q_norm, k_norm, max_seq_len, theta: see `Qwen3MultiHeadAttention`.
        w_gate, w_up, w_down: see `Qwen3MLP`.
        w_input_layernorm: E, weight of the norm before attention.
        w_post_attention_layernorm: E, weight of the norm before the MLP.
    """

    def __init__(
        self,
        num_attention_heads: int,
        num_kv_heads: int,
        hidden_size: int,
        head_dim: int,
        intermediate_size: int,
        rms_norm_eps: float,
        wq: mx.array,
        wk: mx.array,
        wv: mx.array,
        wo: mx.array,
        q_norm: mx.array,
        k_norm: mx.array,
        w_gate: mx.array,
        w_up: mx.array,
        w_down: mx.array,
        w_input_layernorm: mx.array,
        w_post_attention_layernorm: mx.array,
        max_seq_len: int = 32768,
        theta: int | float = 1000000,
    ):
        self.self_attn = Qwen3MultiHeadAttention(
            hidden_size,
            num_attention_heads,
            num_kv_heads,
            head_dim,
            wq,
            wk,
            wv,
            wo,
            q_norm,
            k_norm,
            max_seq_len=max_seq_len,
            theta=theta,
            rms_norm_eps=rms_norm_eps,
        )
        self.mlp = Qwen3MLP(hidden_size, intermediate_size, w_gate, w_up, w_down)
        self.input_layernorm = RMSNorm(hidden_size, w_input_layernorm, eps=rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(
            hidden_size, w_post_attention_layernorm, eps=rms_norm_eps
        )

    def __call__(self, x: mx.array, mask: Mask = None) -> mx.array:
        """Runs the layer: B×L×E -> B×L×E; `mask` as in `Qwen3MultiHeadAttention`."""
        # [task 1.5.1]
        x = x + self.self_attn(self.input_layernorm(x), mask)
        return x + self.mlp(self.post_attention_layernorm(x))
        # [/task 1.5.1]


class Qwen3ModelWeek1:
    """Qwen3: token ids to next-token logits at every position.

    Args:
        mlx_model: a Qwen3 checkpoint from `mlx_lm.load` or `load_weights`. Quantized weights are
            dequantized to bfloat16; plain weights are used unchanged.
    """

    def __init__(self, mlx_model: Any):
        args = mlx_model.args
        self.num_hidden_layers = args.num_hidden_layers
        self.hidden_size = args.hidden_size
        self.vocab_size = args.vocab_size
        self.max_seq_len = args.max_position_embeddings
        # [task 1.5.3 weights]
        self.embedding = Embedding(
            args.vocab_size, args.hidden_size, _plain_weight(mlx_model.model.embed_tokens)
        )
        dtype = self.embedding.weight.dtype
        self.layers = [_build_block(args, layer, dtype) for layer in mlx_model.model.layers]
        self.norm = RMSNorm(
            args.hidden_size, mlx_model.model.norm.weight.astype(dtype), eps=args.rms_norm_eps
        )
        # With tied embeddings, the embedding table is also the output projection.
        self.w_lm_head = None if args.tie_word_embeddings else _plain_weight(mlx_model.lm_head)
        # [/task 1.5.3 weights]

    def __call__(self, ids: mx.array) -> mx.array:
        """Runs the model on complete sequences: token ids B×L -> logits B×L×V."""
        # [task 1.5.3 forward]
        x = self.embedding(ids)  # B×L×E
        for layer in self.layers:
            x = layer(x, mask="causal")
        x = self.norm(x)
        if self.w_lm_head is None:
            return self.embedding.as_linear(x)
        return linear(x, self.w_lm_head)
        # [/task 1.5.3 forward]


def _build_block(args: Any, layer: Any, dtype: mx.Dtype) -> Qwen3TransformerBlock:
    """Builds a transformer block from an mlx_lm layer's weights.

    Norm weights, which no checkpoint quantizes, are cast to the activations' dtype, because a
    float16 norm weight would promote bfloat16 activations to float32.
    """
    attention, mlp = layer.self_attn, layer.mlp
    return Qwen3TransformerBlock(
        num_attention_heads=args.num_attention_heads,
        num_kv_heads=args.num_key_value_heads,
        hidden_size=args.hidden_size,
        head_dim=args.head_dim,
        intermediate_size=args.intermediate_size,
        rms_norm_eps=args.rms_norm_eps,
        wq=_plain_weight(attention.q_proj),
        wk=_plain_weight(attention.k_proj),
        wv=_plain_weight(attention.v_proj),
        wo=_plain_weight(attention.o_proj),
        q_norm=attention.q_norm.weight.astype(dtype),
        k_norm=attention.k_norm.weight.astype(dtype),
        w_gate=_plain_weight(mlp.gate_proj),
        w_up=_plain_weight(mlp.up_proj),
        w_down=_plain_weight(mlp.down_proj),
        w_input_layernorm=layer.input_layernorm.weight.astype(dtype),
        w_post_attention_layernorm=layer.post_attention_layernorm.weight.astype(dtype),
        max_seq_len=args.max_position_embeddings,
        theta=args.rope_theta,
    )


def _plain_weight(mlx_layer: Any) -> mx.array:
    """Returns a layer's weight O×I: bfloat16 if quantized, else as stored."""
    weight = dequantize_linear(mlx_layer)
    return weight.astype(mx.bfloat16) if hasattr(mlx_layer, "scales") else weight
