"""RMSNorm: normalizes features to unit scale between layers."""

import mlx.core as mx


class RMSNorm:
    """Computes x / √(mean(x²) + eps) · weight over the last axis, of size D.

    The mean of squares is accumulated in float32, because in float16, the squares of values
    ≥ 256 overflow, and in bfloat16, sums drop small terms. The result is cast back before the
    weight is applied, to match the rounding that Qwen3 was trained with.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).

    Args:
        dim: D.
        weight: D scale factors.

    Raises:
        ValueError: `weight` does not have shape D.
    """

    def __init__(self, dim: int, weight: mx.array, eps: float = 1e-5):
        if weight.shape != (dim,):
            raise ValueError(f"RMSNorm: weight must have shape ({dim},), got {weight.shape}.")
        self.dim = dim
        self.weight = weight
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        """Normalizes the last axis: N..×D -> N..×D."""
        # [task 1.4.1]
        x32 = x.astype(mx.float32)
        mean_square = mx.mean(mx.square(x32), axis=-1, keepdims=True)  # N..×1
        return (x32 * mx.rsqrt(mean_square + self.eps)).astype(x.dtype) * self.weight
        # [/task 1.4.1]
