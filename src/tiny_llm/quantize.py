"""Quantized weights. Week 1 only turns them back into plain ones."""

from typing import Any

import mlx.core as mx


def dequantize_linear(mlx_layer: Any) -> mx.array:
    """The plain weight of an MLX linear or embedding layer, quantized or not.

    Args:
        mlx_layer: an `mlx.nn` `Linear`, `Embedding`, or the quantized form of either.

    Returns:
        O×I: in the dtype of the scales if the layer is quantized, else the layer's own weight.
    """
    if "scales" not in mlx_layer:
        return mlx_layer.weight
    return mx.dequantize(
        mlx_layer.weight,
        mlx_layer.scales,
        mlx_layer.get("biases"),
        group_size=mlx_layer.group_size,
        bits=mlx_layer.bits,
        mode=getattr(mlx_layer, "mode", "affine"),
    )
