"""Week 1's transformer block and model, built from a checkpoint's layers."""

from typing import Any

import mlx.core as mx

from ..attention import Mask
from ..basics import linear
from ..embedding import Embedding
from ..layer_norm import RMSNorm
from ..quantize import dequantize_linear
from .attention import Qwen3MultiHeadAttention
from .mlp import Qwen3MLP


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
