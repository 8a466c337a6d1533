"""Names and shapes of a checkpoint's tensors, derived from its config.

A weight matrix O×I, for O outputs and I inputs, is stored unquantized as `weight`, or as the arrays
listed in `quantization.py`.
"""

from collections.abc import Iterator

from ..families.config import DecoderConfig, DeltaNetConfig, MoEConfig
from .quantization import Shape

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
