"""A layer's weight, as the checkpoint stores it."""

from typing import Any

import mlx.core as mx

from ..quantize import QuantizedWeights, check_supported

Weight = QuantizedWeights | mx.array


def layer_weight(mlx_layer: Any) -> Weight:
    """Returns a layer's weight as stored; ValueError if unsupported."""
    if not hasattr(mlx_layer, "scales"):
        return mlx_layer.weight
    # [task 2.3.4 weight]
    weight = QuantizedWeights.from_mlx_layer(mlx_layer)
    # [/task 2.3.4 weight]
    check_supported(weight)
    return weight
