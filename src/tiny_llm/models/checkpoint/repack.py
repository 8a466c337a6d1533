"""Repacking: lossless conversion to the CPU kernels' quantization formats.

The kernels support 4- and 8-bit affine weights and 4-bit floating-point weights, in groups of 32,
64 and 128, with 16-bit scales. Other formats would be multiplied by MLX, which is hundreds of
times slower on a CPU. Loading therefore converts weights in other formats to a supported one, in
which every weight keeps its exact value:

    affine 2, 3 bits   affine 4 bits: the same integers, scales and biases
    affine 5, 6 bits   affine 8 bits: the same integers, scales and biases
    mxfp4              the same codes, with bfloat16 scales (`kernels/mxfp4.py`), if the activations
                       are bfloat16
    mxfp8, nvfp4,      unquantized in the dtype of the activations, which represents weight · scale
    other mxfp4        exactly

Converted weights are larger in memory than in the file. On a GPU, nothing is repacked: MLX's Metal
kernels are fast for all formats.
"""

from typing import Any

import mlx.core as mx

from ... import kernels
from ...kernels.mxfp4 import E2M1, e8m0_to_bfloat16
from ...kernels.prepack import copy_tree, is_lookup_table
from ...quantize import dequantize_linear
from ..families.linear import activation_dtype
from ..families.registry import config_of


def repack(module: Any, dtype: mx.Dtype = mx.bfloat16) -> None:
    """Lazily converts layers whose format the CPU kernels do not support.

    `dtype` is that of the activations. A no-op on a GPU, or if the kernels are not built.
    """
    for layer in _repackable_layers(module):
        mode = getattr(layer, "mode", "affine")
        if mode == "affine":
            _widen(layer)
        elif mode == "mxfp4" and dtype == mx.bfloat16:
            _widen_scales(layer)
        else:
            _dequantize(layer, dtype)


def repacked(mlx_model: Any) -> Any:
    if not _repackable_layers(mlx_model):
        return mlx_model
    model = copy_tree(mlx_model)
    repack(model, activation_dtype(model.model, config_of(model.args).exceeds_float16))
    return model


def unpack_integers(weight: mx.array, bits: int, group_size: int) -> mx.array:
    """Unpacks weights to uint32 integers: N..×(I·bits/32) -> N..×I."""
    groups = (*weight.shape[:-1], weight.shape[-1] * 32 // bits // group_size)
    ones, zeros = mx.ones(groups), mx.zeros(groups)
    return mx.dequantize(weight, ones, zeros, group_size=group_size, bits=bits).astype(mx.uint32)


def pack_integers(integers: mx.array, bits: int) -> mx.array:
    """Packs 4- or 8-bit integers into uint32: N..×I -> N..×(I·bits/32)."""
    *N, I = integers.shape
    per_word = 32 // bits
    shifts = mx.arange(per_word, dtype=mx.uint32) * bits
    words = integers.reshape(*N, I // per_word, per_word) << shifts
    return words.sum(axis=-1).astype(mx.uint32)


def _repackable_layers(module: Any) -> list[Any]:
    if not (kernels.computes_on_cpu() and kernels.is_built()):
        return []
    layers = [layer for layer in module.modules() if "scales" in layer]
    return [layer for layer in layers if _is_repackable(layer) and not is_lookup_table(layer)]


def _is_repackable(layer: Any) -> bool:
    mode = getattr(layer, "mode", "affine")
    if mode == "affine":
        narrow = layer.bits in (2, 3, 5, 6)
        return narrow and kernels.supports_quantization(4, layer.group_size, layer.scales.dtype)
    return mode in ("mxfp4", "mxfp8", "nvfp4") and "global_scale" not in layer


def _widen(layer: Any) -> None:
    """Repacks affine integers: 2 and 3 bits to 4, 5 and 6 bits to 8."""
    wide = 4 if layer.bits < 4 else 8
    layer.weight = pack_integers(unpack_integers(layer.weight, layer.bits, layer.group_size), wide)
    layer.bits = wide


def _widen_scales(layer: Any) -> None:
    layer.scales = e8m0_to_bfloat16(layer.scales)
    layer.biases, layer.mode = None, E2M1


def _dequantize(layer: Any, dtype: mx.Dtype) -> None:
    layer.weight = dequantize_linear(layer).astype(dtype)
    for name in ("scales", "group_size", "bits", "mode"):
        delattr(layer, name)
