"""Gemma 4: config fields, and per-layer inputs of the small models.

Each layer of these models has a second, small token embedding with P features:

    input = (embedding of the token · √P + RMSNorm(projection(x) / √E)) / √2      x: first layer's
    update = RMSNorm(projection(GELU(gate · x) · input))                          x: after the MLP

The embedding table of all layers is larger than the rest of the model. On Linux it is
memory-mapped, so a step reads only its tokens' rows (`kernels.map_file`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import mlx.core as mx

from ... import kernels
from .config import MAX_EXPERTS, MAX_HEAD_DIM, DecoderConfig, MoEConfig, PerLayerInputConfig
from .config_fields import (
    Fields,
    boolean,
    invalid_field,
    non_negative_int,
    positive_float,
    positive_int,
)
from .linear import embedding_from, linear_from

ROPE_PARAMETERS = {
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e6,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def with_gemma4_fields(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    """Adds the `config.json` fields that are specific to Gemma 4."""
    bidirectional = fields.get("use_bidirectional_attention")
    if bidirectional not in (None, False, "vision"):  # "vision" concerns images only
        raise invalid_field("use_bidirectional_attention", bidirectional, "'vision' or null")
    num_layers = config.num_hidden_layers
    local = frozenset[int]() if config.local_rope is None else config.local_rope.layers
    full = frozenset(range(num_layers)) - local
    sources = _kv_sources(fields, num_layers, local)
    shared = [sources[index] != index for index in range(num_layers)]
    is_wide = boolean(fields, "use_double_wide_mlp")
    I = config.intermediate_size
    size = non_negative_int(fields, "hidden_size_per_layer_input", 0)
    vocab_size = positive_int(fields, "vocab_size_per_layer_input", config.vocab_size)
    per_layer_inputs = None
    if size:
        if vocab_size < config.vocab_size:
            expected = f"at least vocab_size, {config.vocab_size}"
            raise invalid_field("vocab_size_per_layer_input", vocab_size, expected)
        per_layer_inputs = PerLayerInputConfig(vocab_size, size)
    has_softcap = fields.get("final_logit_softcapping") is not None
    return replace(
        config,
        attention_scale=1.0,
        kv_shapes=_kv_shapes(fields, config, full),
        kv_sources=tuple(sources),
        keys_as_values=tuple(sorted(full)) if boolean(fields, "attention_k_eq_v") else (),
        value_norm=True,
        intermediate_sizes=tuple(2 * I if is_wide and each else I for each in shared),
        per_layer_inputs=per_layer_inputs,
        layer_scalars=True,
        logit_softcap=positive_float(fields, "final_logit_softcapping") if has_softcap else None,
        experts=_experts(fields, config) if boolean(fields, "enable_moe_block") else None,
    )


def _kv_shapes(
    fields: Fields, config: DecoderConfig, full: frozenset[int]
) -> tuple[tuple[int, int], ...]:
    """(KV heads, head size) of each layer; `per_layer_config`, from transformers, has priority."""
    H, D = config.num_key_value_heads, config.head_dim
    H_full = H
    if boolean(fields, "attention_k_eq_v"):
        H_full = positive_int(fields, "num_global_key_value_heads", H)
    D_full = positive_int(fields, "global_head_dim", 512)
    layers = fields.get("per_layer_config") or {}
    if not isinstance(layers, Mapping):
        raise invalid_field("per_layer_config", layers, "an object")
    shapes = []
    for index in range(config.num_hidden_layers):
        own = layers.get(str(index)) or {}
        is_full = index in full and not layers
        shape = (
            positive_int(own, "num_key_value_heads", H_full if is_full else H),
            positive_int(own, "head_dim", D_full if is_full else D),
        )
        if config.num_attention_heads % shape[0] != 0:
            expected = f"a multiple of num_global_key_value_heads, {shape[0]}"
            raise invalid_field("num_attention_heads", config.num_attention_heads, expected)
        if shape[1] % 2 != 0 or shape[1] > MAX_HEAD_DIM:
            expected = f"an even number of at most {MAX_HEAD_DIM}"
            raise invalid_field("global_head_dim", shape[1], expected)
        shapes.append(shape)
    return tuple(shapes)


def _kv_sources(fields: Fields, num_layers: int, local: frozenset[int]) -> list[int]:
    """Source of each layer's keys and values: itself, or the last unshared layer of its type."""
    num_shared = non_negative_int(fields, "num_kv_shared_layers", 0)
    own = range(num_layers - num_shared)
    sources = list(own)
    for index in range(len(own), num_layers):
        same = [other for other in own if (other in local) == (index in local)]
        if not same:
            expected = "so few that each type of layer has keys and values"
            raise invalid_field("num_kv_shared_layers", num_shared, expected)
        sources.append(same[-1])
    return sources


def _experts(fields: Fields, config: DecoderConfig) -> MoEConfig:
    num_experts = positive_int(fields, "num_experts", most=MAX_EXPERTS)
    return MoEConfig(
        num_experts,
        positive_int(fields, "top_k_experts", most=num_experts),
        positive_int(fields, "moe_intermediate_size"),
        norm_topk_prob=True,
        layers=frozenset(range(config.num_hidden_layers)),
        activation=config.activation,
        parallel_mlp=True,
    )


class PerLayerInputs:
    """Per-layer inputs of a step's tokens."""

    def __init__(self, config: DecoderConfig, parts: Any, dtype: mx.Dtype):
        assert config.per_layer_inputs is not None
        self.shape = config.num_hidden_layers, config.per_layer_inputs.size
        rows = config.per_layer_inputs.vocab_size, config.num_hidden_layers * self.shape[1]
        self.table = embedding_from(parts.embed_tokens_per_layer, rows, dtype)
        self.projection = linear_from(parts.per_layer_model_projection, dtype)
        self.norm = parts.per_layer_projection_norm.weight.astype(dtype)
        self.eps = config.rms_norm_eps

    def __call__(self, ids: mx.array, x: mx.array) -> mx.array:
        """Inputs of all layers, 1×T×(layers·P), for ids 1×T and the first layer's x, 1×T×E."""
        B, T, E = x.shape
        scale = mx.array(self.shape[1] ** 0.5, x.dtype)
        projected = self.projection(x) * mx.array(E**-0.5, x.dtype)
        projected = kernels.rms_norm(projected.reshape(B, T, *self.shape), self.norm, self.eps)
        total = projected.reshape(B, T, -1) + self.table(ids).astype(x.dtype) * scale
        return total * mx.array(2**-0.5, x.dtype)


class PerLayerUpdate:
    """A layer's update from its per-layer inputs, after the MLP."""

    def __init__(self, config: DecoderConfig, index: int, layer: Any, dtype: mx.Dtype):
        assert config.per_layer_inputs is not None
        size = config.per_layer_inputs.size
        self.features = slice(index * size, (index + 1) * size)
        self.gate = linear_from(layer.per_layer_input_gate, dtype)
        self.projection = linear_from(layer.per_layer_projection, dtype)
        self.norm = layer.post_per_layer_input_norm.weight.astype(dtype)
        self.eps = config.rms_norm_eps
        self.activation = config.activation

    def __call__(self, x: mx.array, inputs: mx.array) -> mx.array:
        """Computes the update of x, 1×T×E, from the inputs of all layers."""
        gated = kernels.swiglu(self.gate(x), inputs[..., self.features], self.activation)
        return kernels.rms_norm(self.projection(gated), self.norm, self.eps)
