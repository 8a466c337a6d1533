"""SwiGLU feed-forward layer."""

from typing import Any

import mlx.core as mx

from ... import kernels
from .linear import linear_each, linear_from


class Mlp:
    """The SwiGLU feed-forward layer: w_down(silu(w_gate x) * (w_up x)).

    Args:
        layer: the checkpoint's layer, with `gate_proj`, `up_proj` and `down_proj`.
        dtype: dtype of the activations.
    """

    def __init__(self, layer: Any, dtype: mx.Dtype):
        self.w_gate = linear_from(layer.gate_proj, dtype)
        self.w_up = linear_from(layer.up_proj, dtype)
        self.w_down = linear_from(layer.down_proj, dtype)

    @property
    def nbytes(self) -> int:
        """Size of the weight matrices in bytes."""
        return self.w_gate.nbytes + self.w_up.nbytes + self.w_down.nbytes

    def __call__(self, x: mx.array) -> mx.array:
        """N..×E -> N..×E."""
        gate, up = linear_each(x, (self.w_gate, self.w_up))
        return self.w_down(kernels.swiglu(gate, up))
