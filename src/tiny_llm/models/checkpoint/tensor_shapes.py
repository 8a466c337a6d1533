"""Names, shapes and quantization formats of a checkpoint's tensors.

A weight matrix O×I, for O outputs and I inputs, is stored unquantized as `weight`, or in one of
MLX's quantization formats:

    mode     bits                group size    per group
    affine   2, 3, 4, 5, 6, 8    32, 64, 128   a scale and a bias: weight = q · scale + bias
    mxfp4    4, floating point   32            a power of two
    mxfp8    8, floating point   32            a power of two
    nvfp4    4, floating point   16            an 8-bit floating-point scale

The quantized values of a row are packed into uint32 integers, starting at the lowest bits.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import short_repr
from ..families.config import DecoderConfig, DeltaNetConfig, MoEConfig
from ..families.config_fields import invalid_field, positive_int

Shape = tuple[int, ...]

# Bits and group sizes of each mode, default first.
MODES: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "affine": ((4, 2, 3, 5, 6, 8), (64, 32, 128)),
    "mxfp4": ((4,), (32,)),
    "mxfp8": ((8,), (32,)),
    "nvfp4": ((4,), (16,)),
}


@dataclass(frozen=True)
class Quantization:
    group_size: int
    bits: int
    mode: str = "affine"

    @classmethod
    def from_config(cls, fields: Mapping[str, Any]) -> "Quantization":
        """Parses `config["quantization"]`, or a layer's entry; ValueError if unsupported."""
        mode = fields.get("mode") or "affine"
        if not isinstance(mode, str) or mode not in MODES:
            raise invalid_field("quantization mode", mode, f"one of {', '.join(MODES)}")
        all_bits, group_sizes = MODES[mode]
        bits = positive_int(fields, "bits", all_bits[0], math.inf)
        group_size = positive_int(fields, "group_size", group_sizes[0], math.inf)
        if bits not in all_bits or group_size not in group_sizes:
            raise ValueError(
                f"config.json has {short_repr(bits)}-bit weights in groups of "
                f"{short_repr(group_size)}; mode {mode} supports {_listed(all_bits)} bits in "
                f"groups of {_listed(group_sizes)}"
            )
        return cls(group_size, bits, mode)

    def shapes(self, matrix: Shape) -> dict[str, Shape]:
        """Shapes of the arrays that store matrices N..×O×I, keyed by array name."""
        *N, I = matrix
        groups = I // self.group_size
        stored = {"weight": (*N, I * self.bits // 32), "scales": (*N, groups)}
        return {**stored, "biases": (*N, groups)} if self.mode == "affine" else stored

    @property
    def bits_per_weight(self) -> float:
        """Bits per stored weight, including its share of the group's scale and bias."""
        return self.bits + (32 if self.mode == "affine" else 8) / self.group_size


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """MLX's format of the checkpoint; gpt-oss's original MXFP4 has the bits of MLX's."""
    other = config.get("quantization_config")
    if config.get("quantization") is None and other and other.get("quant_method") == "mxfp4":
        return {"group_size": 32, "bits": 4, "mode": "mxfp4"}
    quantization: Mapping[str, Any] | None = config.get("quantization")
    return quantization


def check_quantization(config: Mapping[str, Any]) -> None:
    """Raises ValueError for another library's format or an unsupported MLX format."""
    for name in ("quantization", "quantization_config"):
        if not isinstance(config.get(name), dict | None):
            raise invalid_field(name, config[name], "an object")
    quantization, other = quantization_of(config), config.get("quantization_config")
    if quantization is None and other:
        method = other.get("quant_method") or other.get("quant_algo") or "another library"
        raise ValueError(
            f"its weights are quantized by {short_repr(method)}, which is not an MLX format; use a "
            "checkpoint converted to MLX, for example from mlx-community, or convert the "
            "unquantized model with `mlx_lm.convert -q`"
        )
    quantization = quantization or {}
    overrides = {name: value for name, value in quantization.items() if isinstance(value, dict)}
    for path, fields in {"": quantization, **overrides}.items():
        try:
            Quantization.from_config(fields)
        except ValueError as error:
            layer = f" of {short_repr(path)}" if path else ""
            raise ValueError(f"invalid quantization{layer}: {error}") from error


def _listed(numbers: tuple[int, ...]) -> str:
    *head, last = sorted(numbers)
    return f"{', '.join(map(str, head))} or {last}" if head else str(last)


# Name suffixes of tensors that are never quantized; a matrix is named by its layer's path alone.
VECTORS = (
    *(".weight", ".bias", ".sinks", ".A_log", ".dt_bias"),
    *(".scale", ".per_expert_scale", ".layer_scalar"),
)

# Matrices that are only looked up in; see `kernels.prepack.is_lookup_table`.
LOOKUP_TABLES = ("model.embed_tokens_per_layer",)


def matrix_shapes(config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    """Yields (layer path, shape) of each matrix: O×I, or X×O×I for X experts."""
    return (entry for entry in _shapes(config) if not entry[0].endswith(VECTORS))


def vector_shapes(config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    """Yields (name, shape) of each tensor that is never quantized."""
    return (entry for entry in _shapes(config) if entry[0].endswith(VECTORS))


def _shapes(config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    E = config.hidden_size
    yield "model.embed_tokens", (config.vocab_size, E)
    for index in range(config.num_hidden_layers):
        yield from _layer(config, index, f"model.layers.{index}")
    yield "model.norm.weight", (E,)
    if config.per_layer_inputs is not None:
        P = config.per_layer_inputs.size
        width = config.num_hidden_layers * P
        yield "model.embed_tokens_per_layer", (config.per_layer_inputs.vocab_size, width)
        yield "model.per_layer_model_projection", (width, E)
        yield "model.per_layer_projection_norm.weight", (P,)
    if not config.tie_word_embeddings:
        yield "lm_head", (config.vocab_size, E)
    if config.has_mtp:
        yield "mtp.fc", (E, 2 * E)
        yield "mtp.pre_fc_norm_embedding.weight", (E,)
        yield "mtp.pre_fc_norm_hidden.weight", (E,)
        yield from _layer(config.mtp_config, 0, "mtp.layers.0")
        yield "mtp.norm.weight", (E,)


def _layer(config: DecoderConfig, index: int, path: str) -> Iterator[tuple[str, Shape]]:
    E, I, mlp = config.hidden_size, config.intermediate_size_of(index), f"{path}.mlp"
    if config.delta_net is not None and config.has_delta_net(index):
        yield from _delta_net(f"{path}.linear_attn", config.delta_net, E)
    else:
        yield from _attention(f"{path}.self_attn", config, index)
    experts = config.experts
    if experts is not None and experts.parallel_mlp:
        yield from _parallel_experts(path, experts, E)
        yield from _mlp(mlp, I, E)
    elif experts is not None and config.has_experts(index):
        X, shared = experts.num_experts, experts.shared_expert_intermediate_size
        yield f"{mlp}.gate", (X, E)
        yield from _mlp(f"{mlp}.switch_mlp", experts.intermediate_size, E, (X,))
        if shared is not None:
            yield from _mlp(f"{mlp}.shared_expert", shared, E)
            yield f"{mlp}.shared_expert_gate", (1, E)
        if experts.bias:
            yield f"{mlp}.gate.bias", (X,)
            yield f"{mlp}.switch_mlp.gate_proj.bias", (X, experts.intermediate_size)
            yield f"{mlp}.switch_mlp.up_proj.bias", (X, experts.intermediate_size)
            yield f"{mlp}.switch_mlp.down_proj.bias", (X, E)
    else:
        yield from _mlp(mlp, I, E)
    if config.mlp_bias:
        yield f"{mlp}.gate_proj.bias", (I,)
        yield f"{mlp}.up_proj.bias", (I,)
        yield f"{mlp}.down_proj.bias", (E,)
    yield f"{path}.input_layernorm.weight", (E,)
    yield f"{path}.post_attention_layernorm.weight", (E,)
    if config.post_norms:
        yield f"{path}.pre_feedforward_layernorm.weight", (E,)
        yield f"{path}.post_feedforward_layernorm.weight", (E,)
    if config.per_layer_inputs is not None:
        P = config.per_layer_inputs.size
        yield f"{path}.per_layer_input_gate", (P, E)
        yield f"{path}.per_layer_projection", (E, P)
        yield f"{path}.post_per_layer_input_norm.weight", (E,)
    if config.layer_scalars:
        yield f"{path}.layer_scalar", (1,)


def _attention(path: str, config: DecoderConfig, index: int) -> Iterator[tuple[str, Shape]]:
    E, H_q = config.hidden_size, config.num_attention_heads
    H, D = config.kv_shape_of(index)
    outputs = {"q_proj": config.query_dim_of(index)}
    if config.kv_source(index) == index:
        outputs["k_proj"] = H * D
        if index not in config.keys_as_values:
            outputs["v_proj"] = H * D
    for name, size in outputs.items():
        yield f"{path}.{name}", (size, E)
    yield f"{path}.o_proj", (E, H_q * D)
    if config.qk_norm:
        yield f"{path}.q_norm.weight", (D,)
        if config.kv_source(index) == index:
            yield f"{path}.k_norm.weight", (D,)
    if config.qkv_bias:
        for name, size in outputs.items():
            yield f"{path}.{name}.bias", (size,)
    if config.o_proj_bias:
        yield f"{path}.o_proj.bias", (E,)
    if config.attention_sinks:
        yield f"{path}.sinks", (H_q,)


def _delta_net(path: str, net: DeltaNetConfig, E: int) -> Iterator[tuple[str, Shape]]:
    yield f"{path}.in_proj_qkv", (net.conv_channels, E)
    yield f"{path}.in_proj_z", (net.value_dim, E)
    yield f"{path}.in_proj_b", (net.num_value_heads, E)
    yield f"{path}.in_proj_a", (net.num_value_heads, E)
    yield f"{path}.out_proj", (E, net.value_dim)
    yield f"{path}.conv1d.weight", (net.conv_channels, net.conv_kernel_dim, 1)
    yield f"{path}.A_log", (net.num_value_heads,)
    yield f"{path}.dt_bias", (net.num_value_heads,)
    yield f"{path}.norm.weight", (net.value_head_dim,)


def _parallel_experts(path: str, experts: MoEConfig, E: int) -> Iterator[tuple[str, Shape]]:
    X = experts.num_experts
    yield f"{path}.router.proj", (X, E)
    yield f"{path}.router.scale", (E,)
    yield f"{path}.router.per_expert_scale", (X,)
    yield from _mlp(f"{path}.experts.switch_glu", experts.intermediate_size, E, (X,))
    for norm in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2"):
        yield f"{path}.{norm}.weight", (E,)
    yield f"{path}.pre_feedforward_layernorm_2.weight", (E,)


def _mlp(path: str, I: int, E: int, experts: Shape = ()) -> Iterator[tuple[str, Shape]]:
    yield f"{path}.gate_proj", (*experts, I, E)
    yield f"{path}.up_proj", (*experts, I, E)
    yield f"{path}.down_proj", (*experts, E, I)
