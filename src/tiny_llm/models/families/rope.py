"""RoPE scaling beyond the training context.

All types change the rotation frequencies, and one also the magnitude:

    linear   divides all frequencies by one factor
    llama3   divides low frequencies, keeps high ones, with a ramp in between
    yarn     like llama3 with another ramp; scales queries and keys slightly

Sources: Chen et al., "Extending Context Window of Large Language Models via Positional
Interpolation" (2023), for linear; Meta's Llama 3.1 for llama3; Peng et al., "YaRN: Efficient
Context Window Extension of Large Language Models" (2023), for yarn.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ...positional_encoding import RoPE
from .config_fields import boolean, positive_float, positive_int, reject_unknown_fields

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
# Fields of each type, besides type and factor.
FIELDS_BY_TYPE = {
    "linear": ("original_max_position_embeddings",),
    "llama3": ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
}


@dataclass(frozen=True)
class RopeScaling:
    """Parameters of RoPE scaling.

    Attributes:
        rope_type: "linear", "llama3" or "yarn".
        factor: scaling factor of the context.
        original_context: context length in training.
        low, high: bounds of the ramp, in rotations within that context: frequencies of pairs below
            `low` are divided by the factor, those above `high` are kept.
        attention_factor: multiplies queries and keys.
        truncate: whether yarn's ramp starts and ends at whole pairs.
    """

    rope_type: str
    factor: float
    original_context: int
    low: float = 1.0
    high: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any] | None, context: int) -> "RopeScaling | None":
        """Parses `rope_scaling`, or `rope_parameters`, of a `config.json`.

        Args:
            fields: the object; None if missing.
            context: `max_position_embeddings`.

        Returns:
            None for plain RoPE.

        Raises:
            ValueError: an unknown type or field, or an invalid value.
        """
        if fields is None:
            return None
        if not isinstance(fields, Mapping):
            raise ValueError(f"config.json has rope_scaling {fields!r}, expected an object")
        rope_type = (
            fields.get("rope_type") or fields.get("type") or "default"
        )  # both spellings occur
        if rope_type not in ROPE_TYPES:
            raise ValueError(
                f"config.json has rope_scaling of the type {rope_type!r}; tiny-llm knows "
                f"{', '.join(ROPE_TYPES)}"
            )
        known = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor"}
        reject_unknown_fields(
            fields, known.union(FIELDS_BY_TYPE.get(rope_type, ())), "rope_scaling of config.json"
        )
        if positive_float(fields, "partial_rotary_factor", 1.0) != 1:
            raise ValueError("config.json has a partial_rotary_factor; tiny-llm turns whole heads")
        if rope_type == "default":
            return None
        factor = positive_float(fields, "factor")
        original = positive_int(fields, "original_max_position_embeddings", context)
        if rope_type == "llama3":
            low, high = (
                positive_float(fields, "low_freq_factor"),
                positive_float(fields, "high_freq_factor"),
            )
            if low >= high:
                raise ValueError(f"config.json has low_freq_factor {low} ≥ high_freq_factor {high}")
            return cls(rope_type, factor, original, low, high)
        if rope_type == "yarn":
            return cls(
                rope_type,
                factor,
                original,
                low=positive_float(fields, "beta_slow", 1.0),
                high=positive_float(fields, "beta_fast", 32.0),
                attention_factor=_yarn_attention_factor(fields, factor),
                truncate=boolean(fields, "truncate", True),
            )
        return cls(rope_type, factor, original)

    def scaled_context(self, context: int) -> int:
        """Context length of a model with `max_position_embeddings` = `context`.

        For llama3, `context` is already scaled; for other types it may be the original length.
        """
        if self.rope_type == "llama3":
            return context
        return max(context, int(self.original_context * self.factor))

    def inv_freq(self, inv_freq: mx.array, base: float) -> mx.array:
        """Scaled inverse frequencies D/2, from plain RoPE's."""
        if self.rope_type == "linear":
            return inv_freq / self.factor
        if self.rope_type == "llama3":
            rotations = self.original_context / (2 * math.pi / inv_freq)
            kept = mx.clip((rotations - self.low) / (self.high - self.low), 0, 1)
        else:
            kept = 1 - self._yarn_ramp(inv_freq.size, base)
        return inv_freq / self.factor * (1 - kept) + inv_freq * kept

    def _yarn_ramp(self, num_pairs: int, base: float) -> mx.array:
        """Ramp D/2: 0 for pairs that keep their frequency, 1 for those fully scaled."""

        def pair_with(rotations: float) -> float:
            """Fractional index of the pair with `rotations` rotations in the original context."""
            wave = self.original_context / (rotations * 2 * math.pi)
            return num_pairs * math.log(wave) / math.log(base)

        first, last = pair_with(self.high), pair_with(self.low)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * num_pairs - 1)
        width = last - first or 0.001
        return mx.clip((mx.arange(num_pairs, dtype=mx.float32) - first) / width, 0, 1)


class ScaledRoPE(RoPE):
    """`RoPE` with scaling.

    Args:
        dims, seq_len, base: see `RoPE`; pairs are split in halves.
        scaling: scaling parameters; None for plain RoPE.
    """

    def __init__(self, dims: int, seq_len: int, base: float, scaling: RopeScaling | None):
        super().__init__(dims, seq_len, base)
        self.scaling = scaling

    @functools.cached_property
    def inv_freq(self) -> mx.array:
        """See `RoPE`."""
        plain = RoPE(self.dims, self.seq_len, self.base).inv_freq
        if self.scaling is None:
            return plain
        inv_freq = self.scaling.inv_freq(plain, self.base)
        mx.eval(inv_freq)
        return inv_freq

    def cos_sin_at(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """See `RoPE`. Cosines and sines include the attention factor."""
        cos, sin = super().cos_sin_at(positions)
        if self.scaling is None or self.scaling.attention_factor == 1:
            return cos, sin
        factor = self.scaling.attention_factor
        return cos * factor, sin * factor


def _yarn_attention_factor(fields: Mapping[str, Any], factor: float) -> float:
    if fields.get("attention_factor") is not None:
        return positive_float(fields, "attention_factor")

    def growth(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0

    mscale, all_dim = fields.get("mscale"), fields.get("mscale_all_dim")
    if mscale and all_dim:
        return growth(positive_float(fields, "mscale")) / growth(
            positive_float(fields, "mscale_all_dim")
        )
    return growth(1.0)
