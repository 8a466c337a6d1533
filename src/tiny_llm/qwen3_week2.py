"""Qwen3 with a KV cache and quantized weights: what Week 2 changes in the model.

A call computes only the new tokens; their keys and values join those of the past in the cache.
Weights stay as the checkpoint stores them and are multiplied in that form.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from .attention import scaled_dot_product_attention_grouped
from .basics import silu
from .embedding import Embedding
from .kv_cache import TinyKvCache, TinyKvFullCache
from .layer_norm import RMSNorm
from .positional_encoding import RoPE
from .quantize import QuantizedEmbedding, QuantizedWeights, project

Weight = QuantizedWeights | mx.array


class Qwen3MultiHeadAttention:
    """Week 1's attention with a cache, and with weights in either form.

    Args:
        args: the configuration, as `mlx_lm` reads it.
        mlx_attention: the layer of `mlx_lm` whose weights to use.
        dtype: of the activations.
    """

    def __init__(self, args: Any, mlx_attention: Any, dtype: mx.Dtype):
        self.num_heads = args.num_attention_heads
        self.num_kv_heads = args.num_key_value_heads
        self.head_dim = args.head_dim
        self.scale = args.head_dim**-0.5
        self.wq = _weight(mlx_attention.q_proj)
        self.wk = _weight(mlx_attention.k_proj)
        self.wv = _weight(mlx_attention.v_proj)
        self.wo = _weight(mlx_attention.o_proj)
        self.q_norm = _norm(args, mlx_attention.q_norm, dtype)
        self.k_norm = _norm(args, mlx_attention.k_norm, dtype)
        self.rope = RoPE(args.head_dim, args.max_position_embeddings, base=args.rope_theta)

    def __call__(self, x: mx.array, offsets: list[slice], cache: TinyKvCache) -> mx.array:
        """Attends from the new tokens to themselves and to the past.

        Args:
            x: B×L×E, the new tokens.
            offsets: the positions of each sequence's new tokens, B slices of length L.
            cache: this layer's past.

        Returns:
            B×L×E, dtype of `x`.
        """
        B, L, _ = x.shape
        H_q, H, D = self.num_heads, self.num_kv_heads, self.head_dim
        query = self.rope(self.q_norm(project(x, self.wq).reshape(B, L, H_q, D)), offsets)
        key = self.rope(self.k_norm(project(x, self.wk).reshape(B, L, H, D)), offsets)
        value = project(x, self.wv).reshape(B, L, H, D)
        keys, values, _, mask = cache.update_and_fetch(
            key.swapaxes(1, 2), value.swapaxes(1, 2), mask_length=L, mask="causal"
        )  # B×H×S×D
        attended = scaled_dot_product_attention_grouped(
            query.swapaxes(1, 2).astype(mx.float32),  # B×H_q×L×D
            keys.astype(mx.float32),
            values.astype(mx.float32),
            scale=self.scale,
            mask=mask,
        ).astype(x.dtype)
        return project(attended.swapaxes(1, 2).reshape(B, L, H_q * D), self.wo)


class Qwen3MLP:
    """Week 1's MLP with weights in either form.

    Args:
        mlx_mlp: the layer of `mlx_lm` whose weights to use.
    """

    def __init__(self, mlx_mlp: Any):
        self.w_gate = _weight(mlx_mlp.gate_proj)
        self.w_up = _weight(mlx_mlp.up_proj)
        self.w_down = _weight(mlx_mlp.down_proj)

    def __call__(self, x: mx.array) -> mx.array:
        """N..×E -> N..×E."""
        return project(silu(project(x, self.w_gate)) * project(x, self.w_up), self.w_down)


class Qwen3TransformerBlock:
    """Week 1's block, handing positions and cache to the attention.

    Args:
        args: the configuration, as `mlx_lm` reads it.
        mlx_layer: the layer of `mlx_lm` whose weights to use.
        dtype: of the activations.
    """

    def __init__(self, args: Any, mlx_layer: Any, dtype: mx.Dtype):
        self.self_attn = Qwen3MultiHeadAttention(args, mlx_layer.self_attn, dtype)
        self.mlp = Qwen3MLP(mlx_layer.mlp)
        self.input_layernorm = _norm(args, mlx_layer.input_layernorm, dtype)
        self.post_attention_layernorm = _norm(args, mlx_layer.post_attention_layernorm, dtype)

    def __call__(self, x: mx.array, offsets: list[slice], cache: TinyKvCache) -> mx.array:
        """B×L×E -> B×L×E; arguments as in `Qwen3MultiHeadAttention`."""
        x = x + self.self_attn(self.input_layernorm(x), offsets, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen3ModelWeek2:
    """Qwen3 that remembers: new token ids and a cache in, their logits out.

    Activations have the dtype of the checkpoint's scales, or of its weights if it is not quantized.

    Args:
        mlx_model: what `mlx_lm.load` returned for a Qwen3 checkpoint. Nothing is copied.
        enable_flash_attn: attend through the extension's flash attention.

    Raises:
        ValueError: `enable_flash_attn`, which is not there yet; a kind of quantization that the
            kernels do not read.
    """

    def __init__(self, mlx_model: Any, enable_flash_attn: bool = False):
        if enable_flash_attn:
            raise ValueError("flash attention is not implemented yet; leave enable_flash_attn out.")
        args = mlx_model.args
        self.num_hidden_layers = args.num_hidden_layers
        self.hidden_size = args.hidden_size
        self.vocab_size = args.vocab_size
        self.max_seq_len = args.max_position_embeddings
        table = _weight(mlx_model.model.embed_tokens)
        self.embedding: Embedding | QuantizedEmbedding
        if isinstance(table, QuantizedWeights):
            dtype = table.scales.dtype
            self.embedding = QuantizedEmbedding(args.vocab_size, args.hidden_size, table)
        else:
            dtype = table.dtype
            self.embedding = Embedding(args.vocab_size, args.hidden_size, table)
        self.layers = [
            Qwen3TransformerBlock(args, layer, dtype) for layer in mlx_model.model.layers
        ]
        self.norm = _norm(args, mlx_model.model.norm, dtype)
        self.w_lm_head = None if args.tie_word_embeddings else _weight(mlx_model.lm_head)

    def create_kv_cache(self) -> list[TinyKvCache]:
        """An empty cache for one request: one for each layer."""
        return [TinyKvFullCache() for _ in range(self.num_hidden_layers)]

    def __call__(
        self, inputs: mx.array, offset: int | Sequence[int] | mx.array, cache: list[TinyKvCache]
    ) -> mx.array:
        """Runs the new tokens through the model and adds them to the cache.

        Args:
            inputs: B×L ids, the new tokens.
            offset: the position of the first of them: a number for all sequences, or B numbers.
            cache: one for each layer, from `create_kv_cache`.

        Returns:
            Logits, B×L×V.

        Raises:
            ValueError: not one cache a layer, not one offset a sequence, or a position beyond the
                model's context.
        """
        if len(cache) != self.num_hidden_layers:
            raise ValueError(
                f"Qwen3ModelWeek2: {len(cache)} caches were given for {self.num_hidden_layers} "
                "layers."
            )
        offsets = _positions(inputs, offset)
        x = self.embedding(inputs)  # B×L×E
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x = layer(x, offsets, layer_cache)
        x = self.norm(x)
        if self.w_lm_head is None:
            return self.embedding.as_linear(x)
        return project(x, self.w_lm_head)


def _positions(inputs: mx.array, offset: int | Sequence[int] | mx.array) -> list[slice]:
    """The positions of each sequence's new tokens, B slices of length L."""
    B, L = inputs.shape
    given: Any = offset.tolist() if isinstance(offset, mx.array) else offset
    starts: list[int] = [given] * B if isinstance(given, int) else list(given)
    if len(starts) != B:
        raise ValueError(f"Qwen3ModelWeek2: {len(starts)} offsets were given for a batch of {B}.")
    return [slice(start, start + L) for start in starts]


def _weight(mlx_layer: Any) -> Weight:
    """A layer's weight as the checkpoint stores it."""
    return QuantizedWeights.from_mlx_layer(mlx_layer) if "scales" in mlx_layer else mlx_layer.weight


def _norm(args: Any, mlx_norm: Any, dtype: mx.Dtype) -> RMSNorm:
    weight = mlx_norm.weight.astype(dtype)
    return RMSNorm(weight.shape[0], weight, eps=args.rms_norm_eps)
