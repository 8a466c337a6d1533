"""Names and shapes of a checkpoint's tensors, derived from its config.

A weight matrix O×I, for O outputs and I inputs, is stored unquantized as `weight`, or as the arrays
listed in `quantization.py`.
"""

from collections.abc import Iterator

from ..families.config import DecoderConfig, DeltaNetConfig, MoEConfig
from .quantization import Shape


def matrix_shapes(config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    """Yields (layer path, shape) for each weight matrix: O×I, or X×O×I for X experts."""
    E = config.hidden_size
    yield "model.embed_tokens", (config.vocab_size, E)
    for index in range(config.num_hidden_layers):
        yield from _layer_matrices(config, index, f"model.layers.{index}")
    if not config.tie_word_embeddings:
        yield "lm_head", (config.vocab_size, E)
    if config.has_mtp:
        yield "mtp.fc", (E, 2 * E)
        yield from _layer_matrices(config.mtp_config, 0, "mtp.layers.0")


def vector_shapes(config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    """Yields (name, shape) for each tensor that is never quantized.

    These are norms, biases, and Gated DeltaNet's convolution and decay.
    """
    E = config.hidden_size
    for index in range(config.num_hidden_layers):
        yield from _layer_vectors(config, index, f"model.layers.{index}")
    yield "model.norm.weight", (E,)
    if config.has_mtp:
        yield "mtp.pre_fc_norm_embedding.weight", (E,)
        yield "mtp.pre_fc_norm_hidden.weight", (E,)
        yield from _layer_vectors(config.mtp_config, 0, "mtp.layers.0")
        yield "mtp.norm.weight", (E,)


def _layer_matrices(config: DecoderConfig, index: int, layer: str) -> Iterator[tuple[str, Shape]]:
    E = config.hidden_size
    if config.delta_net is not None and config.has_delta_net(index):
        yield from _delta_net_matrices(f"{layer}.linear_attn", config.delta_net, E)
    else:
        yield from _attention_matrices(f"{layer}.self_attn", config)
    if config.experts is not None and config.has_experts(index):
        yield from _expert_matrices(f"{layer}.mlp", config.experts, E)
    else:
        yield from _mlp_matrices(f"{layer}.mlp", config.intermediate_size, E)


def _layer_vectors(config: DecoderConfig, index: int, layer: str) -> Iterator[tuple[str, Shape]]:
    E, I = config.hidden_size, config.intermediate_size
    if config.delta_net is not None and config.has_delta_net(index):
        yield from _delta_net_vectors(f"{layer}.linear_attn", config.delta_net)
    else:
        yield from _attention_vectors(f"{layer}.self_attn", config)
    if config.mlp_bias:
        yield f"{layer}.mlp.gate_proj.bias", (I,)
        yield f"{layer}.mlp.up_proj.bias", (I,)
        yield f"{layer}.mlp.down_proj.bias", (E,)
    yield f"{layer}.input_layernorm.weight", (E,)
    yield f"{layer}.post_attention_layernorm.weight", (E,)


def _attention_matrices(path: str, config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    E, D = config.hidden_size, config.head_dim
    H_q, H = config.num_attention_heads, config.num_key_value_heads
    yield f"{path}.q_proj", (config.query_dim, E)
    yield f"{path}.k_proj", (H * D, E)
    yield f"{path}.v_proj", (H * D, E)
    yield f"{path}.o_proj", (E, H_q * D)


def _attention_vectors(path: str, config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    D, H = config.head_dim, config.num_key_value_heads
    if config.qk_norm:
        yield f"{path}.q_norm.weight", (D,)
        yield f"{path}.k_norm.weight", (D,)
    if config.qkv_bias:
        yield f"{path}.q_proj.bias", (config.query_dim,)
        yield f"{path}.k_proj.bias", (H * D,)
        yield f"{path}.v_proj.bias", (H * D,)
    if config.o_proj_bias:
        yield f"{path}.o_proj.bias", (config.hidden_size,)


def _delta_net_matrices(path: str, net: DeltaNetConfig, E: int) -> Iterator[tuple[str, Shape]]:
    yield f"{path}.in_proj_qkv", (net.conv_channels, E)
    yield f"{path}.in_proj_z", (net.value_dim, E)
    yield f"{path}.in_proj_b", (net.num_value_heads, E)
    yield f"{path}.in_proj_a", (net.num_value_heads, E)
    yield f"{path}.out_proj", (E, net.value_dim)


def _delta_net_vectors(path: str, net: DeltaNetConfig) -> Iterator[tuple[str, Shape]]:
    yield f"{path}.conv1d.weight", (net.conv_channels, net.conv_kernel_dim, 1)
    yield f"{path}.A_log", (net.num_value_heads,)
    yield f"{path}.dt_bias", (net.num_value_heads,)
    yield f"{path}.norm.weight", (net.value_head_dim,)


def _mlp_matrices(path: str, I: int, E: int, experts: Shape = ()) -> Iterator[tuple[str, Shape]]:
    """Yields an MLP's matrices; with `experts` = (X,), those of X experts, stacked."""
    yield f"{path}.gate_proj", (*experts, I, E)
    yield f"{path}.up_proj", (*experts, I, E)
    yield f"{path}.down_proj", (*experts, E, I)


def _expert_matrices(path: str, experts: MoEConfig, E: int) -> Iterator[tuple[str, Shape]]:
    yield f"{path}.gate", (experts.num_experts, E)
    yield from _mlp_matrices(
        f"{path}.switch_mlp", experts.intermediate_size, E, (experts.num_experts,)
    )
    if experts.shared_expert_intermediate_size is not None:
        yield from _mlp_matrices(
            f"{path}.shared_expert", experts.shared_expert_intermediate_size, E
        )
        yield f"{path}.shared_expert_gate", (1, E)
