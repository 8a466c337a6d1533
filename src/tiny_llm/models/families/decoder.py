"""A decoder whose parts a config chooses: the layers of every family, run as those of Week 3.

What differs from Qwen3 is small: norms on heads or none, biases or none, another RoPE, experts in
the place of the MLP. Pages, ragged batches and recorded steps are those of `Qwen3ModelWeek3`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx

from ... import kernels
from ...kernels.prepack import prepack_model
from ...kv_cache import TinyKvPagedPool
from ...kv_cache.planning import plan_paged
from ...kv_cache.step_plan import PlannedLayers
from ...qwen3_week2 import AttentionFn
from ...qwen3_week3 import Qwen3ModelWeek3
from .attention_backends import ATTENTION_FUNCTIONS
from .config import DecoderConfig
from .experts import SparseMoE
from .linear import activation_dtype, embedding_from, linear_each, linear_from
from .mlp import Mlp
from .registry import config_of
from .rope import ScaledRoPE

CosSin = tuple[mx.array, mx.array]  # cosines and sines of the new tokens' angles


class Attention:
    """Grouped-query attention over a cache: with norms on heads or without, with biases or without.

    Args:
        config: the decoder's.
        layer: of the checkpoint, with `q_proj` and its like.
        dtype: of the activations.
        attend: how the new tokens attend.

    Raises:
        ValueError: the heads cannot be grouped.
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
        """Attends from the new tokens to themselves and to the past: B×L×E -> B×L×E."""
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
    """One layer: attention, then the MLP or experts, each behind a norm and added to its input.

    Args:
        config: the decoder's.
        index: which layer it is.
        layer: of the checkpoint.
        dtype: of the activations.
        attend: how the new tokens attend.
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
        """As Week 2's block: (x, update), whose sum is the output, from those of the last block."""
        return self.feed_forward(*self.attend(x, update, cos_sin, cache))

    def attend(
        self, x: mx.array, update: mx.array | None, cos_sin: CosSin, cache: Any
    ) -> tuple[mx.array, mx.array]:
        """The first half: (x, what attention adds to it)."""
        if update is None:
            normed = kernels.rms_norm(x, self.input_layernorm, self.eps)
        else:
            x, normed = kernels.add_rms_norm(x, update, self.input_layernorm, self.eps)
        return x, self.self_attn(normed, cos_sin, cache)

    def feed_forward(self, x: mx.array, update: mx.array) -> tuple[mx.array, mx.array]:
        """The second half: (x, what the MLP or the experts add to it)."""
        x, normed = kernels.add_rms_norm(x, update, self.post_attention_layernorm, self.eps)
        return x, self.mlp(normed)


class EagerLayers(PlannedLayers):
    """Layers that cannot be recorded: they look at values, or attend in operations of MLX."""

    def _function_of(self, num_metadata_arrays: int) -> Callable[..., Any]:
        return partial(self._run, num_metadata_arrays)


class Decoder(Qwen3ModelWeek3):
    """A model of any family of the registry, over pages.

    Args:
        mlx_model: a checkpoint from `mlx_lm.load` or `load_weights`. Its arrays are shared.
        page_size: tokens a page holds.
        attention_backend: one of `ATTENTION_BACKENDS`.

    Attributes:
        config: its sizes and parts.
        attention_backend, page_size: as given; other attributes are those of `Qwen3ModelWeek3`.
        supports_graph_capture: whether its layers call the extension alone, and look at no values.

    Raises:
        ValueError: a page size below 1, or sizes or weights that no decoder has.
    """

    embedding: Any
    layers: list[Any]
    w_lm_head: Any

    def __init__(self, mlx_model: Any, page_size: int = 128, attention_backend: str = "paged"):
        self.config = config = config_of(mlx_model.args)
        mlx_model = prepack_model(mlx_model)
        parts = mlx_model.model
        self.dtype = activation_dtype(parts.embed_tokens, parts.norm)
        self.num_hidden_layers = config.num_hidden_layers
        self.hidden_size = config.hidden_size
        self.vocab_size = config.vocab_size
        self.max_seq_len = config.max_position_embeddings
        self.num_kv_heads, self.head_dim = config.num_key_value_heads, config.head_dim
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
        self.page_pool = TinyKvPagedPool(page_size)
        self._plan = plan_paged
        self.supports_graph_capture = attention_backend == "paged" and not self._needs_host_sync()
        run_planned = PlannedLayers if self.supports_graph_capture else EagerLayers
        self._run_planned = run_planned(self._run_each_layer, self.num_hidden_layers)

    def _needs_host_sync(self) -> bool:
        """Whether some layer has to know which experts were chosen before it goes on."""
        mixtures = [layer.mlp for layer in self.layers if isinstance(layer.mlp, SparseMoE)]
        return any(mixture.experts.needs_host_sync for mixture in mixtures)

    def _logits(self, x: mx.array, update: mx.array) -> mx.array:
        """N..×E and N..×E, the last layer's two arrays -> N..×V."""
        _, x = kernels.add_rms_norm(x, update, self.norm, self.eps)
        logits: mx.array = self.w_lm_head(x)
        return logits
