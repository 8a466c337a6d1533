"""Names and shapes of a checkpoint's tensors, derived from its config.

A weight matrix O×I is stored unquantized as `weight`, or in the arrays of `quantization.py`. Norms
and biases are never quantized.
"""

from collections.abc import Iterator

from ..families.config import DecoderConfig
from .quantization import Shape


def matrix_shapes(config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    """Yields the path of each layer with a matrix and its shape: O×I, or X×O×I for X experts."""
    E, D = config.hidden_size, config.head_dim
    H_q, H = config.num_attention_heads, config.num_key_value_heads
    yield "model.embed_tokens", (config.vocab_size, E)
    for index in range(config.num_hidden_layers):
        layer = f"model.layers.{index}"
        yield f"{layer}.self_attn.q_proj", (H_q * D, E)
        yield f"{layer}.self_attn.k_proj", (H * D, E)
        yield f"{layer}.self_attn.v_proj", (H * D, E)
        yield f"{layer}.self_attn.o_proj", (E, H_q * D)
        mlp, I = f"{layer}.mlp", config.intermediate_size
        N: tuple[int, ...] = ()
        if config.experts is not None and config.has_experts(index):
            X, I = config.experts.num_experts, config.experts.intermediate_size
            yield f"{mlp}.gate", (X, E)
            mlp, N = f"{mlp}.switch_mlp", (X,)  # all experts' matrices in one array
        yield f"{mlp}.gate_proj", (*N, I, E)
        yield f"{mlp}.up_proj", (*N, I, E)
        yield f"{mlp}.down_proj", (*N, E, I)
    if not config.tie_word_embeddings:
        yield "lm_head", (config.vocab_size, E)


def vector_shapes(config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    """Yields the name and shape of each norm weight and each bias."""
    E, D, I = config.hidden_size, config.head_dim, config.intermediate_size
    H_q, H = config.num_attention_heads, config.num_key_value_heads
    for index in range(config.num_hidden_layers):
        layer = f"model.layers.{index}"
        if config.qk_norm:
            yield f"{layer}.self_attn.q_norm.weight", (D,)
            yield f"{layer}.self_attn.k_norm.weight", (D,)
        if config.qkv_bias:
            yield f"{layer}.self_attn.q_proj.bias", (H_q * D,)
            yield f"{layer}.self_attn.k_proj.bias", (H * D,)
            yield f"{layer}.self_attn.v_proj.bias", (H * D,)
        if config.o_proj_bias:
            yield f"{layer}.self_attn.o_proj.bias", (E,)
        if config.mlp_bias:
            yield f"{layer}.mlp.gate_proj.bias", (I,)
            yield f"{layer}.mlp.up_proj.bias", (I,)
            yield f"{layer}.mlp.down_proj.bias", (E,)
        yield f"{layer}.input_layernorm.weight", (E,)
        yield f"{layer}.post_attention_layernorm.weight", (E,)
    yield "model.norm.weight", (E,)
