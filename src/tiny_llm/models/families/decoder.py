"""Decoder for all model families, assembled from a config.

The course's layers, for Qwen3 only, are a deliberate duplicate (`qwen3_week2/`). `DecoderConfig`
lists the differences between families.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from ... import kernels
from ...kernels.prepack import prepack_model
from ...kv_storage import KvLayout, LayerKv, PagedStorage, RaggedBatch, StateStorage
from ...kv_storage.int8_rows import KvCacheDtype
from ...kv_storage.paged_storage import PlannedLayers
from ...kv_storage.step_plan import LayerInputs
from ...positional_encoding import RoPE
from .attention_backends import COMPARISON_BACKENDS, OptionalArray
from .config import DecoderConfig, layers_kv
from .experts import ParallelExperts, SparseMoE
from .gated_delta_net import GatedDeltaNet, state_shape
from .gemma4 import PerLayerInputs, PerLayerUpdate
from .linear import (
    AdapterBatch,
    Linear,
    Mlp,
    activation_dtype,
    embedding_from,
    linear_each,
    linear_from,
    with_8_bit_activations,
)
from .registry import config_of
from .rope import NO_ROTATION, QueryRoPE, ScaledRoPE


def attend_paged(
    query: mx.array,
    key: OptionalArray,
    value: OptionalArray,
    cache: Any,
    scale: float,
    window: int,
    sinks: OptionalArray,
) -> mx.array:
    """Default attention backend; the course's, for Qwen3, is in `qwen3_week3.py`.

    `key` and `value` are None if an earlier layer has written them to `cache`.
    """
    metadata = cache.update_and_fetch_paged(key, value, mask="causal")
    attended = kernels.paged_attention_varlen(
        query.squeeze(0).swapaxes(0, 1),  # T×H_q×D
        metadata.key_pages,
        metadata.value_pages,
        metadata.cu_seqlens_q,
        metadata.context_lens,
        metadata.block_table,
        scale,
        window,
        sinks,
    )
    return attended.swapaxes(0, 1)[None]  # 1×H_q×T×D


def norm_weight(config: DecoderConfig, layer: Any, dtype: mx.Dtype) -> mx.array:
    """Weight of an RMSNorm: float32 for a zero-centered norm stored in float32, otherwise `dtype`.

    transformers computes x · (1 + w) in float32; in 16 bits, 1 + w would lose bits of w.
    """
    weight: mx.array = layer.weight
    keeps_float32 = config.zero_centered_norms and weight.dtype == mx.float32
    return weight if keeps_float32 else weight.astype(dtype)


class Attention:
    """Grouped-query attention with optional QK norms, biases, sinks and output gate.

    With a gate, q_proj outputs D query features, then D gate features, for each head.
    """

    def __init__(
        self, config: DecoderConfig, index: int, layer: Any, dtype: mx.Dtype, backend: str
    ):
        self.num_heads = config.num_attention_heads
        self.num_kv_heads, self.head_dim = config.kv_shape_of(index)
        self.scale = config.attention_scale or self.head_dim**-0.5
        self.has_kv = config.kv_source(index) == index  # otherwise an earlier layer's are read
        self.q_proj = linear_from(layer.q_proj, dtype)
        if self.has_kv:
            self.k_proj = linear_from(layer.k_proj, dtype)
            if index not in config.keys_as_values:
                self.v_proj = linear_from(layer.v_proj, dtype)
            self.k_norm = norm_weight(config, layer.k_norm, dtype) if config.qk_norm else None
        self.o_proj = linear_from(layer.o_proj, dtype)
        self.q_norm = norm_weight(config, layer.q_norm, dtype) if config.qk_norm else None
        self.value_norm = mx.ones(self.head_dim, dtype) if config.value_norm else None
        self.eps = config.rms_norm_eps
        self.has_gate = config.attn_output_gate
        self.window = config.window_of(index)
        self.sinks = layer.sinks.astype(mx.float32) if config.attention_sinks else None
        self._attend = COMPARISON_BACKENDS.get(backend, attend_paged)

    def __call__(self, x: mx.array, cos_sin: LayerInputs, cache: Any) -> mx.array:
        """Attends from L new tokens to the cache and themselves: 1×L×E -> 1×L×E.

        `cos_sin` has the cosines and sines of keys, then those of queries if they differ.
        """
        B, L, _ = x.shape
        H_q, H, D = self.num_heads, self.num_kv_heads, self.head_dim
        key = value = None
        if self.has_kv:
            query, key, *values = linear_each(x, self._projections)
            key = key.reshape(B, L, H, D)
            value = values[0].reshape(B, L, H, D) if values else key
            if self.value_norm is not None:
                value = kernels.rms_norm(value, self.value_norm, self.eps)
            value = value.swapaxes(1, 2)  # B×H×L×D
            key = kernels.qk_norm_rope(key, self.k_norm, self.eps, *cos_sin[:2])  # B×H×L×D
        else:
            query = self.q_proj(x)
        query, gate = self._split_gate(query)  # B×L×H_q×D
        query = kernels.qk_norm_rope(query, self.q_norm, self.eps, *cos_sin[-2:])  # B×H_q×L×D
        rest = cache, self.scale, self.window, self.sinks
        attended = self._attend(query, key, value, *rest).swapaxes(1, 2)  # B×L×H_q×D
        if gate is not None:
            attended = kernels.sigmoid_gate(attended, gate)
        return self.o_proj(attended.reshape(B, L, H_q * D))

    @property
    def _projections(self) -> list[Linear]:
        """q_proj and k_proj, and v_proj unless the values are k_proj's outputs."""
        names = ("q_proj", "k_proj", "v_proj")
        return [getattr(self, name) for name in names if hasattr(self, name)]

    def _split_gate(self, query: mx.array) -> tuple[mx.array, mx.array | None]:
        """Splits q_proj's output into queries and gates (or None), B×L×H_q×D each."""
        B, L, _ = query.shape
        if not self.has_gate:
            return query.reshape(B, L, self.num_heads, self.head_dim), None
        pairs = query.reshape(B, L, self.num_heads, 2, self.head_dim)
        return pairs[..., 0, :], pairs[..., 1, :]


class DecoderBlock:
    """Pre-norm block: attention or Gated DeltaNet, then the MLP or experts.

    With `post_norms`, both updates are normalized before they are added to x. Gemma 4 has experts
    in parallel with the MLP, a third update from per-layer inputs, and a scalar for the output.
    """

    def __init__(
        self, config: DecoderConfig, index: int, layer: Any, dtype: mx.Dtype, attention_backend: str
    ):
        self.mixer: Attention | GatedDeltaNet
        if config.has_delta_net(index):
            is_reference = attention_backend == "reference"
            self.mixer = GatedDeltaNet(config, layer.linear_attn, dtype, is_reference)
        else:
            self.mixer = Attention(config, index, layer.self_attn, dtype, attention_backend)
        self.mlp: Mlp | SparseMoE
        self.experts: ParallelExperts | None = None
        if config.experts is not None and config.experts.parallel_mlp:
            self.experts = ParallelExperts(config, layer, dtype)
        if self.experts is None and config.experts is not None and config.has_experts(index):
            self.mlp = SparseMoE(config.experts, layer.mlp, dtype)
        else:
            self.mlp = Mlp(layer.mlp, dtype, config.activation)

        def norm(name: str) -> mx.array:
            return norm_weight(config, layer[name], dtype)

        self.input_norm = norm("input_layernorm")
        self.post_attention_norm: mx.array | None = None
        self.post_mlp_norm: mx.array | None = None
        if config.post_norms:
            self.post_attention_norm = norm("post_attention_layernorm") / config.residual_divisor
            self.mlp_norm = norm("pre_feedforward_layernorm")
            self.post_mlp_norm = norm("post_feedforward_layernorm") / config.residual_divisor
        else:
            self.mlp_norm = norm("post_attention_layernorm")
        self.per_layer: PerLayerUpdate | None = None
        if config.per_layer_inputs is not None:
            self.per_layer = PerLayerUpdate(config, index, layer, dtype)
        self.scalar = float(layer.layer_scalar.item()) if config.layer_scalars else None
        self.eps, self.post_eps = config.residual_eps, config.rms_norm_eps
        self.angles = config.angles_of(index)

    def __call__(
        self, x: mx.array, update: mx.array | None, cos_sin: LayerInputs, cache: Any
    ) -> tuple[mx.array, mx.array]:
        """Computes (x, update) from the previous block's: the residual stream and a pending addend.

        The caller then calls `finish`, after the all-reduce of the updates in tensor parallelism.
        """
        x, *updates = self.feed_forward(*self.attend(x, update, cos_sin, cache))
        return x, self.combine(*updates)

    def attend(
        self, x: mx.array, update: mx.array | None, cos_sin: LayerInputs, cache: Any
    ) -> tuple[mx.array, mx.array]:
        if update is None:
            normed = kernels.rms_norm(x, self.input_norm, self.eps)
        else:
            x, normed = kernels.add_rms_norm(x, update, self.input_norm, self.eps)
        if isinstance(self.mixer, GatedDeltaNet):
            return x, self.mixer(normed, cache)
        return x, self.mixer(normed, cos_sin, cache)

    def feed_forward(self, x: mx.array, update: mx.array) -> tuple[mx.array, ...]:
        """Returns x and the arguments of `combine`, on a rank as partial sums."""
        if self.post_attention_norm is not None:
            update = kernels.rms_norm(update, self.post_attention_norm, self.post_eps)
        x, normed = kernels.add_rms_norm(x, update, self.mlp_norm, self.eps)
        update = self.mlp(normed)
        return (x, update) if self.experts is None else (x, update, self.experts(x))

    def combine(self, update: mx.array, *of_experts: mx.array) -> mx.array:
        return update if self.experts is None else self.experts.combine(update, *of_experts)

    def finish(
        self, x: mx.array, update: mx.array, per_layer_inputs: mx.array | None = None
    ) -> tuple[mx.array, mx.array | None]:
        """Completes the block after `combine`; the output is x + update, or x without update."""
        if self.post_mlp_norm is not None:
            update = kernels.rms_norm(update, self.post_mlp_norm, self.post_eps)
        if self.per_layer is not None and per_layer_inputs is not None:
            x = kernels.scaled_sum(x, update, 1.0)
            update = self.per_layer(x, per_layer_inputs)
        if self.scalar is None:
            return x, update
        return kernels.scaled_sum(x, update, self.scalar), None


class EagerLayers(PlannedLayers):
    """Runs layers without graph capture, because they sync with the host or use MLX operations."""

    def _function_for(
        self, names: tuple[str, ...], tables: tuple[int, ...], num_inputs: int
    ) -> Callable[..., Any]:
        return partial(self._run, names, tables, num_inputs)


class Decoder:
    """Model of any registered family, which runs ragged batches over paged KV storage.

    Args:
        mlx_model: checkpoint from `mlx_lm.load` or `load_weights`, repacked; its arrays are shared.
        attention_backend: one of `ATTENTION_BACKENDS`.
        kv_cache_dtype: "auto" for the activation dtype, or "int8" for 8-bit keys and values.
        activation_bits: 16, or 8 to round the inputs of quantized layers to 8-bit integers.

    Attributes:
        adapters: LoRA adapters used in the current step (`models/lora_adapters.py`).
        supports_graph_capture: False for the "flash" and "reference" backends, and for experts that
            sync with the host.

    Raises:
        ValueError: the page size, or the model's sizes or weights, are invalid; see also
            `with_8_bit_activations`.
    """

    embedding: Any
    layers: list[Any]
    w_lm_head: Any

    def __init__(
        self,
        mlx_model: Any,
        page_size: int = 128,
        attention_backend: str = "paged",
        kv_cache_dtype: KvCacheDtype = "auto",
        activation_bits: int = 16,
    ):
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, got {page_size}")
        self.config = config = config_of(mlx_model.args)
        mlx_model = prepack_model(mlx_model)
        self.dtype = activation_dtype(mlx_model.model, config.exceeds_float16)
        if activation_bits == 8:
            mlx_model = with_8_bit_activations(mlx_model, self.dtype)
        parts = mlx_model.model
        self.hidden_size = config.hidden_size
        self.vocab_size = config.vocab_size
        self.max_seq_len = config.max_position_embeddings
        self.embedding = embedding_from(
            parts.embed_tokens, (config.vocab_size, config.hidden_size), self.dtype
        )
        self.layers = [
            DecoderBlock(config, index, layer, self.dtype, attention_backend)
            for index, layer in enumerate(parts.layers)
        ]
        self.norm = norm_weight(config, parts.norm, self.dtype)
        self.eps = config.residual_eps
        self.per_layer_inputs: PerLayerInputs | None = None
        if config.per_layer_inputs is not None:
            self.per_layer_inputs = PerLayerInputs(config, parts, self.dtype)
        rope_dims = config.rotary_dim or config.rope_head_dim(0)
        rope = rope_dims, self.max_seq_len, config.rope_theta
        scaling, local = config.rope_scaling, config.local_rope
        self.ropes = [RoPE(*rope) if scaling is None else ScaledRoPE(*rope, scaling)]
        if config.query_scaling is not None:
            self.ropes.append(QueryRoPE(self.ropes[0], config.query_scaling))
        elif local is not None:
            self.ropes.append(
                ScaledRoPE(*rope, NO_ROTATION)
                if local.theta is None
                else RoPE(config.rope_head_dim(1), self.max_seq_len, local.theta)
            )
        head = parts.embed_tokens if config.tie_word_embeddings else mlx_model.lm_head
        self.w_lm_head = linear_from(head, self.dtype)
        self.page_size = page_size
        self.adapters = AdapterBatch()
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_dtype = mx.int8 if kv_cache_dtype == "int8" else self.dtype
        self.supports_graph_capture = attention_backend == "paged" and not self._needs_host_sync()
        run_planned = PlannedLayers if self.supports_graph_capture else EagerLayers
        # Index of each layer's cache; layers that read the same keys and values share one.
        sources = [config.kv_source(index) for index in range(config.num_hidden_layers)]
        owners = sorted(set(sources))
        self._cache_indices = [owners.index(source) for source in sources]
        self._run_planned = run_planned(self._run_layers, len(owners))

    @property
    def blocks(self) -> list[DecoderBlock]:
        """Transformer blocks, without tensor-parallel wrappers."""
        return self.layers

    @property
    def kv_bytes_per_token(self) -> int:
        """KV cache bytes per token, over all layers."""
        return 2 * sum(layer.size for layer in self.kv_layers) * self.kv_element_bytes

    @property
    def kv_layers(self) -> list[LayerKv]:
        """The layers that own keys and values; with tensor parallelism, this rank's rows."""
        return layers_kv(self.config, self.kv_cache_dtype)

    @property
    def kv_element_bytes(self) -> int:
        """Bytes per element of the rows of `kv_layers`, times the number of ranks."""
        return self.kv_dtype.size

    @property
    def state_bytes(self) -> int:
        """Bytes per recurrent-state slot, over all layers; 0 without recurrent state."""
        delta_net = self.config.delta_net
        if delta_net is None:
            return 0
        return len(delta_net.layers) * state_shape(delta_net, self.dtype).nbytes

    def create_paged_storage(
        self, num_pages: int, num_state_slots: int = 0, layout: KvLayout | None = None
    ) -> PagedStorage:
        """Creates KV pages and state slots, whose ids are the same in all layers.

        Args:
            layout: of `kv_layers`; one block table for all layers if None.
        """
        config, states = self.config, None
        if config.delta_net is not None:
            shape = state_shape(config.delta_net, self.dtype)
            states = StateStorage(config.delta_net.layers, num_state_slots, shape)
        layout = layout or KvLayout.one_table(self.kv_layers, self.page_size)
        return PagedStorage(layout, num_pages, self.kv_dtype, states)

    def ragged_logits(
        self,
        ids: Sequence[int] | mx.array,
        batch: RaggedBatch,
        rows: Sequence[int] | mx.array,
        storage: PagedStorage,
    ) -> mx.array:
        """Computes the logits of one step, len(rows)×vocab_size.

        On a CPU, a token's logits are bit-identical whatever the rest of the batch. Precondition:
        all positions are within the context length.

        Args:
            ids: T token ids in the order of `batch`.
            rows: indices of the tokens whose logits are computed, from 0 to T − 1.
            storage: from `create_paged_storage`. Evaluating `storage.arrays` writes the batch's
                keys and values; unless `rows` is empty, evaluating the result does so, too.

        Raises:
            ValueError: the number of ids is not T.
        """
        logits: mx.array = self.w_lm_head(self.ragged_features(ids, batch, rows, storage))
        if self.config.logits_scaling != 1:
            logits = logits / self.config.logits_scaling
        cap = self.config.logit_softcap
        return logits if cap is None else mx.tanh(logits / cap) * cap

    def ragged_features(
        self,
        ids: Sequence[int] | mx.array,
        batch: RaggedBatch,
        rows: Sequence[int] | mx.array,
        storage: PagedStorage,
    ) -> mx.array:
        """Like `ragged_logits`, but returns the LM head's inputs, len(rows)×E."""
        ids = kernels.as_int32(ids)
        if ids.shape != (batch.num_tokens,):
            raise ValueError(
                f"Decoder: expected {batch.num_tokens} ids, one per token of the batch, got shape "
                f"{ids.shape}."
            )
        x = self.embedding(ids[None]).astype(self.dtype)
        if self.config.embedding_scale != 1:
            x = x * mx.array(self.config.embedding_scale, self.dtype)
        if self.config.residual_divisor != 1:
            x = (x.astype(mx.float32) / self.config.residual_divisor).astype(self.dtype)
        others = [] if self.per_layer_inputs is None else [self.per_layer_inputs(ids[None], x)]
        return self._features(x, batch, rows, storage, *others)

    def _features(
        self,
        x: mx.array,
        batch: RaggedBatch,
        rows: Sequence[int] | mx.array,
        storage: PagedStorage,
        *per_layer_inputs: mx.array,
    ) -> mx.array:
        """Runs the layers and the final norm on embeddings x, 1×T×E; returns len(rows)×E."""
        rows = kernels.as_int32(rows)
        positions = batch.positions[None]  # 1×T
        # Pairs of 1×T×(rotated D)/2 arrays.
        cos_sin = tuple(each for rope in self.ropes for each in rope.cos_sin_at(positions))
        x, update = self._run_planned(x, (*cos_sin, *per_layer_inputs), storage.plan(batch))
        _, x = kernels.add_rms_norm(x[0, rows], update[0, rows], self.norm, self.eps)
        return x

    def _run_layers(
        self, x: mx.array, inputs: LayerInputs, caches: Sequence[Any]
    ) -> tuple[mx.array, mx.array]:
        self.adapters.ids = caches[0].attention_metadata.adapter_ids
        num_angles = 2 * len(self.ropes)
        per_layer_inputs = inputs[num_angles] if len(inputs) > num_angles else None
        update = None
        for layer, block, index in zip(self.layers, self.blocks, self._cache_indices, strict=True):
            x, update = layer(x, update, inputs[block.angles], caches[index])
            x, update = layer.finish(x, update, per_layer_inputs)
        return x, mx.zeros_like(x) if update is None else update

    def _needs_host_sync(self) -> bool:
        mixtures = [part for layer in self.layers for part in (layer.mlp, layer.experts)]
        return any(
            mixture.experts.needs_host_sync
            for mixture in mixtures
            if isinstance(mixture, SparseMoE | ParallelExperts)
        )
