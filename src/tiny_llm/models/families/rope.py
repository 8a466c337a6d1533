"""RoPE config fields, and RoPE scaling beyond the training context.

All scaling types change the rotation frequencies:

    linear         divides all frequencies by one factor
    llama3         divides low frequencies and keeps high ones, with a linear ramp in between
    yarn           like llama3, but the ramp is linear in the pair's index instead of its frequency;
                   also scales queries and keys slightly
    proportional   like linear, but rotates only the leading pairs

Sources: Chen et al., "Positional Interpolation" (2023), arXiv 2306.15595, for linear; Meta's
Llama 3.1 for llama3; Peng et al., "YaRN" (2023), arXiv 2309.00071, for yarn.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ...positional_encoding import RoPE
from .config_fields import Fields, boolean, invalid_field, positive_float, positive_int

PROPORTIONAL = "proportional"
ROPE_TYPES = ("default", "mrope", "linear", "llama3", "yarn", PROPORTIONAL)

# Fields that `RopeScaling` does not read. Sections of multimodal RoPE are ignored, because a text
# token has the same position in every section.
OTHER_FIELDS = (
    *("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved"),
    "max_position_embeddings",
)


@dataclass(frozen=True)
class RopeFields:
    """RoPE fields of a `config.json`; newer configs group them in one object."""

    theta: float  # RoPE's base
    scaling: Fields  # fields for `RopeScaling.from_fields`
    partial_rotary_factor: float = 1.0  # fraction of each head's features that RoPE rotates
    local_theta: float | None = None  # base in layers with a window, if it may differ

    @classmethod
    def from_config(
        cls, fields: Fields, partial: float = 1.0, local_theta: float | None = None
    ) -> "RopeFields":
        """Parses the fields; grouped ones take precedence, as in transformers.

        `partial` is the default `partial_rotary_factor`; `local_theta` is the default base in
        layers with a window, or None if all layers have the same RoPE.
        """
        local: Fields = {}
        grouped = {name: fields.get(name) or {} for name in ("rope_scaling", "rope_parameters")}
        for name, group in grouped.items():
            if not isinstance(group, Mapping):
                raise invalid_field(name, group, "an object")
            if any(isinstance(value, Mapping) for value in group.values()):
                if local_theta is None:
                    raise invalid_field(name, group, "the same RoPE in all layers")
                local = group.get("sliding_attention") or {}
                grouped[name] = group.get("full_attention") or {}
        if local.get("rope_type", "default") != "default":
            raise invalid_field(
                "rope_type", local["rope_type"], "'default' in layers with a window"
            )
        groups = [*grouped.values(), fields]

        def first(name: str) -> Any:
            values = [group.get(name) for group in groups]
            return next((value for value in values if value is not None), None)

        found = {name: first(name) for name in ("rope_theta", "partial_rotary_factor")}
        scaling = {
            x: value for x, value in (groups[0] or groups[1]).items() if x not in OTHER_FIELDS
        }
        original = "original_max_position_embeddings"
        if fields.get(original) is not None:
            scaling[original] = fields[original]
        theta = positive_float(found, "rope_theta", 10000.0)
        factor = positive_float(found, "partial_rotary_factor", partial)
        if local_theta is not None:
            local_theta = positive_float(fields, "rope_local_base_freq", local_theta)
            local_theta = positive_float(local, "rope_theta", local_theta)
        return cls(theta, scaling, factor, local_theta)

    def rotary_dim(self, head_dim: int) -> int | None:
        """Number of rotated features per head; None for all."""
        factor = self.partial_rotary_factor
        if factor == 1:
            return None
        rotary_dim = int(head_dim * factor)
        if rotary_dim < 2 or rotary_dim % 2 != 0 or factor > 1:
            raise ValueError(
                f"config.json has partial_rotary_factor {factor} and head_dim {head_dim}; their "
                f"product must be an even number from 2 to {head_dim}"
            )
        return rotary_dim


@dataclass(frozen=True)
class RopeScaling:
    rope_type: str  # "linear", "llama3", "yarn" or "proportional"
    factor: float
    original_context: int  # context length in training
    # Ramp bounds, in rotations over the original context: pairs below `low` have their frequencies
    # divided by the factor, pairs above `high` keep theirs.
    low: float = 1.0
    high: float = 1.0
    attention_factor: float = 1.0  # factor applied to queries and keys
    truncate: bool = True  # whether yarn's ramp bounds are rounded to integer pair indices
    rotated: float = 1.0  # fraction of a head's pairs that proportional RoPE rotates

    @classmethod
    def from_fields(
        cls, fields: Fields, context: int, partial: float = 1.0
    ) -> "RopeScaling | None":
        """Parses `rope_scaling` or `rope_parameters`; None for plain RoPE.

        `partial` is the `partial_rotary_factor`.
        """
        # Old configs use `type`, newer ones `rope_type`.
        new, old = fields.get("rope_type"), fields.get("type")
        rope_type = new or old or "default"
        if fields.get("long_factor") is not None:  # Phi-3's early configs have "su" or "yarn"
            rope_type = "longrope"
        if rope_type not in ROPE_TYPES:
            raise invalid_field("rope_scaling type", rope_type, f"one of {', '.join(ROPE_TYPES)}")
        if rope_type in ("default", "mrope"):
            return None
        if rope_type == PROPORTIONAL:
            return cls(rope_type, positive_float(fields, "factor", 1.0), context, rotated=partial)
        factor = positive_float(fields, "factor")
        original = positive_int(fields, "original_max_position_embeddings", context)
        if rope_type == "llama3":
            low, high = (positive_float(fields, f"{name}_freq_factor") for name in ("low", "high"))
            if low >= high:
                raise invalid_field("low_freq_factor", low, f"less than high_freq_factor, {high}")
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
        """Scaled context length, given `max_position_embeddings` as `context`.

        For llama3, `context` is already scaled; for other types it may be the original length.
        """
        if self.rope_type == "llama3":
            return context
        return max(context, int(self.original_context * self.factor))

    def inv_freq(self, inv_freq: mx.array, base: float) -> mx.array:
        """Scales plain RoPE's inverse frequencies, one per pair of rotated features."""
        if self.rope_type == "linear":
            return inv_freq / self.factor
        if self.rope_type == PROPORTIONAL:
            num_rotated = int(self.rotated * inv_freq.size)
            is_rotated = mx.arange(inv_freq.size) < num_rotated
            return mx.where(is_rotated, inv_freq / self.factor, 0.0)
        if self.rope_type == "llama3":
            rotations = self.original_context / (2 * math.pi / inv_freq)
            unscaled = mx.clip((rotations - self.low) / (self.high - self.low), 0, 1)
        else:
            unscaled = 1 - self._yarn_ramp(inv_freq.size, base)
        return inv_freq / self.factor * (1 - unscaled) + inv_freq * unscaled

    def _yarn_ramp(self, num_pairs: int, base: float) -> mx.array:
        """Ramp over pairs: 0 for an unscaled frequency, 1 for a fully scaled one."""

        def pair_with(rotations: float) -> float:
            """Fractional index of the pair that rotates `rotations` times in training."""
            wave = self.original_context / (rotations * 2 * math.pi)
            return num_pairs * math.log(wave) / math.log(base)

        first, last = pair_with(self.high), pair_with(self.low)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * num_pairs - 1)
        width = last - first or 0.001
        return mx.clip((mx.arange(num_pairs, dtype=mx.float32) - first) / width, 0, 1)


NO_ROTATION = RopeScaling("linear", math.inf, original_context=1)  # NoPE: all angles are 0


class ScaledRoPE(RoPE):
    def __init__(self, dims: int, seq_len: int, base: float, scaling: RopeScaling):
        super().__init__(dims, seq_len, base)
        self.scaling = scaling

    @functools.cached_property
    def inv_freq(self) -> mx.array:
        plain = RoPE(self.dims, self.seq_len, self.base).inv_freq
        inv_freq = self.scaling.inv_freq(plain, self.base)
        mx.eval(inv_freq)
        return inv_freq

    def cos_sin_at(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """See `RoPE`. Cosines and sines include the attention factor."""
        cos, sin = super().cos_sin_at(positions)
        if self.scaling.attention_factor == 1:
            return cos, sin
        factor = self.scaling.attention_factor
        return cos * factor, sin * factor


@dataclass(frozen=True)
class QueryScaling:
    """Scale of a query by its position, for contexts beyond training, as in Llama 4.

    The query at position p is multiplied by 1 + beta · log(1 + ⌊p / original_context⌋).
    """

    beta: float
    original_context: int  # context length in training

    @classmethod
    def from_fields(cls, fields: Fields, context: int) -> "QueryScaling | None":
        if not fields.get("llama_4_scaling_beta"):
            return None
        original = positive_int(fields, "original_max_position_embeddings", context)
        return cls(positive_float(fields, "llama_4_scaling_beta"), original)


class QueryRoPE(RoPE):
    """A RoPE's rotation for queries, which also scales them."""

    def __init__(self, rope: RoPE, scaling: QueryScaling):
        super().__init__(rope.dims, rope.seq_len, rope.base)
        self.rope, self.scaling = rope, scaling

    def cos_sin_at(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """See `RoPE`. Cosines and sines include the queries' scale."""
        cos, sin = self.rope.cos_sin_at(positions)
        repeats = (positions // self.scaling.original_context).astype(mx.float32)
        scale = 1 + self.scaling.beta * mx.log1p(repeats)[..., None]
        return cos * scale, sin * scale


def _yarn_attention_factor(fields: Mapping[str, Any], factor: float) -> float:
    if fields.get("attention_factor") is not None:
        return positive_float(fields, "attention_factor")

    def growth(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0

    mscale, all_dim = fields.get("mscale"), fields.get("mscale_all_dim")
    if mscale and all_dim:
        mscale, all_dim = (positive_float(fields, name) for name in ("mscale", "mscale_all_dim"))
        return growth(mscale) / growth(all_dim)
    return growth(1.0)
