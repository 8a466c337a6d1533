"""Qwen3's MLP: SwiGLU, a gated feed-forward layer."""

import mlx.core as mx

from ..basics import linear, silu


class Qwen3MLP:
    """SwiGLU feed-forward layer: w_down(silu(w_gate x) * (w_up x)).

    Source: Shazeer, "GLU Variants Improve Transformer" (2020).

    Args:
        dim: E.
        hidden_dim: I.
        w_gate, w_up: I×E.
        w_down: E×I.
    """

    def __init__(
        self, dim: int, hidden_dim: int, w_gate: mx.array, w_up: mx.array, w_down: mx.array
    ):
        self.dim = dim
        self.hidden_dim = hidden_dim
        self.w_gate = w_gate
        self.w_up = w_up
        self.w_down = w_down

    def __call__(self, x: mx.array) -> mx.array:
        """Applies the MLP: N..×E -> N..×E."""
        # [task 1.4.2 mlp]
        return linear(silu(linear(x, self.w_gate)) * linear(x, self.w_up), self.w_down)
        # [/task 1.4.2 mlp]
