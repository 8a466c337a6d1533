"""The sizes in a checkpoint's `config.json`, and the shapes of its tensors, which follow from them.

A weight matrix O×I is stored plain, as `weight`, or quantized, as `weight` O×(I·bits/32) with
`scales` and `biases` O×(I/group_size); see `quantize.py`. Norms are always plain.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]

SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "vocab_size",
    "num_key_value_heads",
    "max_position_embeddings",
    "head_dim",
)


@dataclass(frozen=True)
class Qwen3Args:
    """A Qwen3's configuration under the names of `config.json`, as the args of `mlx_lm`'s model.

    Attributes:
        rope_theta: RoPE's base.
        rope_scaling: how RoPE is stretched beyond the context of the training, if it is.
    """

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int
    max_position_embeddings: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    rope_scaling: dict[str, Any] | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Qwen3Args":
        """From a parsed `config.json`.

        Raises:
            ValueError: a field is missing, or makes no sense.
        """
        # Newer checkpoints have both of RoPE's fields under one name.
        rope = config.get("rope_parameters") or {}
        theta, scaling = config.get("rope_theta"), config.get("rope_scaling")
        fields = {
            **config,
            "rope_theta": rope.get("rope_theta") if theta is None else theta,
            "rope_scaling": (rope or None) if scaling is None else scaling,
        }
        sizes = {name: _number(fields, name, int) for name in SIZES}
        return cls(
            **sizes,
            model_type=config["model_type"],
            rms_norm_eps=_number(fields, "rms_norm_eps", (int, float)),
            rope_theta=_number(fields, "rope_theta", (int, float)),
            tie_word_embeddings=bool(_field(fields, "tie_word_embeddings")),
            rope_scaling=fields["rope_scaling"],
        )


@dataclass(frozen=True)
class Quantization:
    """How a matrix is quantized; see `QuantizedWeights`."""

    group_size: int
    bits: int

    @classmethod
    def from_config(cls, fields: Mapping[str, Any]) -> "Quantization":
        """From `config["quantization"]`, or from what is written there for one layer.

        Raises:
            ValueError: a field is missing, or makes no sense.
        """
        return cls(_number(fields, "group_size", int), _number(fields, "bits", int))

    def shapes(self, matrix: Shape) -> dict[str, Shape]:
        """The shapes of what a matrix O×I is stored as."""
        O, I = matrix
        groups = I // self.group_size
        return {"weight": (O, I * self.bits // 32), "scales": (O, groups), "biases": (O, groups)}


def matrices(args: Qwen3Args) -> Iterator[tuple[str, Shape]]:
    """The path of each layer that has a matrix, and the matrix's shape O×I."""
    E, I, D = args.hidden_size, args.intermediate_size, args.head_dim
    H_q, H = args.num_attention_heads, args.num_key_value_heads
    yield "model.embed_tokens", (args.vocab_size, E)
    for index in range(args.num_hidden_layers):
        layer = f"model.layers.{index}"
        yield f"{layer}.self_attn.q_proj", (H_q * D, E)
        yield f"{layer}.self_attn.k_proj", (H * D, E)
        yield f"{layer}.self_attn.v_proj", (H * D, E)
        yield f"{layer}.self_attn.o_proj", (E, H_q * D)
        yield f"{layer}.mlp.gate_proj", (I, E)
        yield f"{layer}.mlp.up_proj", (I, E)
        yield f"{layer}.mlp.down_proj", (E, I)
    if not args.tie_word_embeddings:
        yield "lm_head", (args.vocab_size, E)


def norms(args: Qwen3Args) -> Iterator[tuple[str, Shape]]:
    """The path of each norm, and the shape of its weight."""
    E, D = args.hidden_size, args.head_dim
    for index in range(args.num_hidden_layers):
        layer = f"model.layers.{index}"
        yield f"{layer}.self_attn.q_norm", (D,)
        yield f"{layer}.self_attn.k_norm", (D,)
        yield f"{layer}.input_layernorm", (E,)
        yield f"{layer}.post_attention_layernorm", (E,)
    yield "model.norm", (E,)


def _field(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise ValueError(f"config.json has no {name}")
    return fields[name]


def _number(fields: Mapping[str, Any], name: str, kind: Any) -> Any:
    """A field that must be a positive number, whole or not."""
    value = _field(fields, name)
    if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < math.inf:
        what = "a positive whole number" if kind is int else "a positive number"
        raise ValueError(f"config.json has {name} {value!r}, expected {what}")
    return value
