"""Decoder of all families: transformer layers assembled from a config.

The families differ only in QK norms, biases, RoPE scaling, and experts instead of the MLP.
Implements `ServingModel` (`models/protocol.py`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from ... import kernels
from ...attention import as_int32
from ...kernels.prepack import prepack_model
from ...kv_cache import PagedStorage, RaggedBatch
from ...kv_cache.step_plan import PlannedLayers
from ...qwen3_week2 import AttentionFn
from .attention_backends import ATTENTION_FUNCTIONS
from .config import DecoderConfig
from .experts import SparseMoE
from .linear import activation_dtype, embedding_from, linear_each, linear_from
from .mlp import Mlp
from .registry import config_of
from .rope import ScaledRoPE

CosSin = tuple[mx.array, mx.array]  # cosines and sines of the new tokens' positions


class Attention:
    """Grouped-query attention over a KV cache, with optional QK norms and biases.

    Args:
        config: the decoder's config.
        layer: the checkpoint's attention layer, with `q_proj`, `k_proj`, `v_proj` and `o_proj`.
        dtype: dtype of the activations.
        attend: the attention function.

    Raises:
        ValueError: the number of query heads is not a multiple of the number of key/value heads.
    """

    def __init__(self, config: DecoderConfig, layer: Any, dtype: mx.Dtype, attend: AttentionFn):
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        if self.num_heads % self.num_kv_heads != 0:
            raise ValueError(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} key/value heads; "
                "the second must divide the first"
            )
        self.head_dim = config.head_dim
        self.scale = config.head_dim**-0.5
        self.wq = linear_from(layer.q_proj, dtype)
        self.wk = linear_from(layer.k_proj, dtype)
        self.wv = linear_from(layer.v_proj, dtype)
        self.wo = linear_from(layer.o_proj, dtype)
        self.q_norm = layer.q_norm.weight.astype(dtype) if config.qk_norm else None
        self.k_norm = layer.k_norm.weight.astype(dtype) if config.qk_norm else None
        self.eps = config.rms_norm_eps
        self._attend = attend

    def __call__(self, x: mx.array, cos_sin: CosSin, cache: Any) -> mx.array:
        """Causal attention of the new tokens over the cache and themselves: B×L×E -> B×L×E."""
        B, L, _ = x.shape
        H_q, H, D = self.num_heads, self.num_kv_heads, self.head_dim
        query, key, value = linear_each(x, (self.wq, self.wk, self.wv))
        query = query.reshape(B, L, H_q, D)
        key = key.reshape(B, L, H, D)
        value = value.reshape(B, L, H, D).swapaxes(1, 2)  # B×H×L×D
        query = kernels.qk_norm_rope(query, self.q_norm, self.eps, *cos_sin)  # B×H_q×L×D
        key = kernels.qk_norm_rope(key, self.k_norm, self.eps, *cos_sin)  # B×H×L×D
        attended = self._attend(query, key, value, cache, self.scale)  # B×H_q×L×D
        return self.wo(attended.swapaxes(1, 2).reshape(B, L, H_q * D))


class DecoderBlock:
    """Pre-norm transformer block: attention, then the MLP or experts.

    Args:
        config: the decoder's config.
        index: index of the layer.
        layer: the checkpoint's layer.
        dtype: dtype of the activations.
        attend: the attention function.
    """

    def __init__(
        self, config: DecoderConfig, index: int, layer: Any, dtype: mx.Dtype, attend: AttentionFn
    ):
        self.self_attn = Attention(config, layer.self_attn, dtype, attend)
        self.mlp: Mlp | SparseMoE
        if config.experts is not None and config.has_experts(index):
            self.mlp = SparseMoE(config.experts, layer.mlp, dtype)
        else:
            self.mlp = Mlp(layer.mlp, dtype)
        self.input_layernorm = layer.input_layernorm.weight.astype(dtype)
        self.post_attention_layernorm = layer.post_attention_layernorm.weight.astype(dtype)
        self.eps = config.rms_norm_eps

    def __call__(
        self, x: mx.array, update: mx.array | None, cos_sin: CosSin, cache: Any
    ) -> tuple[mx.array, mx.array]:
        """Maps the last block's (x, update) to this block's; their sum is the block's output."""
        return self.feed_forward(*self.attend(x, update, cos_sin, cache))

    def attend(
        self, x: mx.array, update: mx.array | None, cos_sin: CosSin, cache: Any
    ) -> tuple[mx.array, mx.array]:
        """The first half: (x, the attention's update)."""
        if update is None:
            normed = kernels.rms_norm(x, self.input_layernorm, self.eps)
        else:
            x, normed = kernels.add_rms_norm(x, update, self.input_layernorm, self.eps)
        return x, self.self_attn(normed, cos_sin, cache)

    def feed_forward(self, x: mx.array, update: mx.array) -> tuple[mx.array, mx.array]:
        """The second half: (x, the update of the MLP or experts)."""
        x, normed = kernels.add_rms_norm(x, update, self.post_attention_layernorm, self.eps)
        return x, self.mlp(normed)


class EagerLayers(PlannedLayers):
    """Runs layers without graph capture: they read values or attend in MLX operations."""

    def _function_for(self, num_metadata_arrays: int) -> Callable[..., Any]:
        return partial(self._run, num_metadata_arrays)


class Decoder:
    """A model of any registered family over paged KV storage.

    Args:
        mlx_model: checkpoint from `mlx_lm.load` or `load_weights`, repacked; its arrays are shared.
        page_size: tokens per page.
        attention_backend: one of `ATTENTION_BACKENDS`.

    Attributes:
        config: the model's config.
        dtype: dtype of activations, keys and values.
        vocab_size, page_size: see `ServingModel`.
        max_seq_len: context length in tokens.
        attention_backend: as given.
        supports_graph_capture: whether a step can be captured: its layers call only the extension
            and read no values.

    Raises:
        ValueError: the page size, sizes or weights are invalid.
    """

    embedding: Any
    layers: list[Any]
    w_lm_head: Any

    def __init__(self, mlx_model: Any, page_size: int = 128, attention_backend: str = "paged"):
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, got {page_size}")
        self.config = config = config_of(mlx_model.args)
        mlx_model = prepack_model(mlx_model)
        parts = mlx_model.model
        self.dtype = activation_dtype(parts.embed_tokens, parts.norm)
        self.hidden_size = config.hidden_size
        self.vocab_size = config.vocab_size
        self.max_seq_len = config.max_position_embeddings
        self.embedding = embedding_from(
            parts.embed_tokens, (config.vocab_size, config.hidden_size), self.dtype
        )
        attend = ATTENTION_FUNCTIONS[attention_backend]
        self.layers = [
            DecoderBlock(config, index, layer, self.dtype, attend)
            for index, layer in enumerate(parts.layers)
        ]
        self.norm = parts.norm.weight.astype(self.dtype)
        self.eps = config.rms_norm_eps
        self.rope = ScaledRoPE(
            config.head_dim, self.max_seq_len, config.rope_theta, config.rope_scaling
        )
        head = parts.embed_tokens if config.tie_word_embeddings else mlx_model.lm_head
        self.w_lm_head = linear_from(head, self.dtype)
        self.page_size = page_size
        self.attention_backend = attention_backend
        self.supports_graph_capture = attention_backend == "paged" and not self._needs_host_sync()
        run_planned = PlannedLayers if self.supports_graph_capture else EagerLayers
        self._run_planned = run_planned(self._run_layers, config.num_hidden_layers)

    @property
    def kv_bytes_per_token(self) -> int:
        """See `ServingModel`."""
        config = self.config
        numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        return numbers * self.dtype.size

    def create_paged_storage(self, num_pages: int) -> PagedStorage:
        """See `ServingModel`."""
        return PagedStorage(
            self.config.num_hidden_layers,
            num_pages,
            self.config.num_key_value_heads,
            self.page_size,
            self.config.head_dim,
            self.dtype,
        )

    def ragged_logits(
        self,
        ids: Sequence[int] | mx.array,
        batch: RaggedBatch,
        rows: Sequence[int] | mx.array,
        storage: PagedStorage,
    ) -> mx.array:
        """See `ServingModel`."""
        ids, rows = as_int32(ids), as_int32(rows)
        if ids.shape != (batch.num_tokens,):
            raise ValueError(
                f"Decoder: ids of shape {ids.shape} were given for a batch of "
                f"{batch.num_tokens} tokens."
            )
        cos_sin = self.rope.cos_sin_at(batch.positions[None])  # 1×T×D/2
        x = self.embedding(ids[None])  # 1×T×E
        x, update = self._run_planned(x, cos_sin, storage.plan(batch))
        _, x = kernels.add_rms_norm(x[0, rows], update[0, rows], self.norm, self.eps)
        logits: mx.array = self.w_lm_head(x)
        return logits

    def _run_layers(
        self, x: mx.array, cos_sin: CosSin, caches: Sequence[Any]
    ) -> tuple[mx.array, mx.array]:
        """Runs all layers, each with its view of the KV pages; returns the last (x, update)."""
        update = None
        for layer, cache in zip(self.layers, caches, strict=True):
            x, update = layer(x, update, cos_sin, cache)
        assert update is not None  # a model has layers
        return x, update

    def _needs_host_sync(self) -> bool:
        """Whether a layer reads the selected experts on the host, a sync within the step."""
        mixtures = [layer.mlp for layer in self.layers if isinstance(layer.mlp, SparseMoE)]
        return any(mixture.experts.needs_host_sync for mixture in mixtures)
