"""Quantization formats of MLX checkpoints and their stored arrays.

    mode     bits                group size    per group
    affine   2, 3, 4, 5, 6, 8    32, 64, 128   a scale and a bias: weight = q · scale + bias
    mxfp4    4, floating point   32            a power of two
    mxfp8    8, floating point   32            a power of two
    nvfp4    4, floating point   16            an 8-bit floating-point scale

The quantized values of a row are packed into uint32 integers, starting at the lowest bits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import short_repr
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
