"""Dequantization: the plain weight of a layer, quantized or not."""

from typing import Any

import mlx.core as mx

# [solution only]
from ..kernels.prepack import row_major_layer

# [/solution only]


def dequantize_linear(mlx_layer: Any) -> mx.array:
    """Dequantizes the weight O×I of an `mlx.nn` linear or embedding layer.

    Returns a plain weight unchanged, a quantized one in the dtype of its scales.
    """
    # [solution only]
    mlx_layer = row_major_layer(mlx_layer)
    # [/solution only]
    # [task 1.5.3 dequantize]
    if not hasattr(mlx_layer, "scales"):
        return mlx_layer.weight
    return mx.dequantize(
        mlx_layer.weight,
        mlx_layer.scales,
        getattr(mlx_layer, "biases", None),
        group_size=mlx_layer.group_size,
        bits=mlx_layer.bits,
        mode=getattr(mlx_layer, "mode", "affine"),
    )
    # [/task 1.5.3 dequantize]
