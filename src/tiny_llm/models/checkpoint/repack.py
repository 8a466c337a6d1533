"""Quantized weights in a form that the CPU's kernels read, with the same values.

The kernels read affine weights of 4 and 8 bits, and floating-point ones of 4 bits, in groups of 32,
64 and 128, with scales of 16 bits. On a CPU, MLX's own product takes hundreds of times as long, so
other formats are written in one of these when a model is loaded. No weight changes:

    affine 2, 3 bits   affine 4 bits: the same integers, scales and biases
    affine 5, 6 bits   affine 8 bits, likewise
    mxfp4              the same, but that a scale is a bfloat16 (`kernels/mxfp4.py`)
    mxfp8, nvfp4       plain bfloat16: products of two short mantissas have room in it

The kernels have no floating-point weights of 8 bits, and no groups of 16, as nvfp4's are. What is
written with more bits takes more memory than it did in the file. On a GPU, weights stay as they
are: MLX's kernels there are fast in each of these formats.
"""

import copy
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ... import kernels
from ...kernels.mxfp4 import E2M1, e8m0_to_bfloat16
from .quantization import dequantize_layer


def repack(module: Any) -> None:
    """Writes the layers of a module whose format the CPU's kernels do not read in one they read.

    Nothing is computed yet. No effect where a GPU computes, or where the kernels were not built.
    """
    for layer in _repackable_layers(module):
        _REPACK_BY_MODE[getattr(layer, "mode", "affine")](layer)


def repacked(mlx_model: Any) -> Any:
    """A model like the given one, repacked; itself if there is nothing to do."""
    if not _repackable_layers(mlx_model):
        return mlx_model
    arrays: Any = tree_flatten(mlx_model)
    own = copy.deepcopy(mlx_model, {id(array): array for _, array in arrays})
    repack(own)
    return own


def unpack_integers(weight: mx.array, bits: int, group_size: int) -> mx.array:
    """The integers of packed weights, N..×(I·bits/32) -> N..×I, as uint32."""
    groups = (*weight.shape[:-1], weight.shape[-1] * 32 // bits // group_size)
    ones, zeros = mx.ones(groups), mx.zeros(groups)
    return mx.dequantize(weight, ones, zeros, group_size=group_size, bits=bits).astype(mx.uint32)


def pack_integers(integers: mx.array, bits: int) -> mx.array:
    """N..×I integers -> N..×(I·bits/32) words, for 4 or 8 bits."""
    *N, I = integers.shape
    per_word = 32 // bits
    shifts = mx.arange(per_word, dtype=mx.uint32) * bits
    words = integers.reshape(*N, I // per_word, per_word) << shifts
    return words.sum(axis=-1).astype(mx.uint32)


def _repackable_layers(module: Any) -> list[Any]:
    if not (kernels.computes_on_cpu() and kernels.is_built()):
        return []
    return [layer for layer in module.modules() if "scales" in layer and _is_repackable(layer)]


def _is_repackable(layer: Any) -> bool:
    mode = getattr(layer, "mode", "affine")
    if mode == "affine":
        narrow = layer.bits in (2, 3, 5, 6)
        return narrow and kernels.supports_quantization(4, layer.group_size, layer.scales.dtype)
    return mode in _REPACK_BY_MODE and "global_scale" not in layer


def _widen(layer: Any) -> None:
    """Affine of few bits."""
    wide = 4 if layer.bits < 4 else 8
    layer.weight = pack_integers(unpack_integers(layer.weight, layer.bits, layer.group_size), wide)
    layer.bits = wide


def _widen_scales(layer: Any) -> None:
    """mxfp4."""
    layer.scales = e8m0_to_bfloat16(layer.scales)
    layer.biases, layer.mode = None, E2M1


def _to_bfloat16(layer: Any) -> None:
    layer.weight = dequantize_layer(layer, mx.bfloat16)
    for name in ("scales", "group_size", "bits", "mode"):
        delattr(layer, name)


_REPACK_BY_MODE: dict[str, Callable[[Any], None]] = {
    "affine": _widen,
    "mxfp4": _widen_scales,
    "mxfp8": _to_bfloat16,
    "nvfp4": _to_bfloat16,
}
