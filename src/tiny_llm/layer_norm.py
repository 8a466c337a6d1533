"""RMSNorm: keeps a token's features at unit scale between the layers."""

import mlx.core as mx


class RMSNorm:
    """x / √(mean(x²) + eps) · weight, over the last axis.

    The mean of squares runs in float32: squares of float16 numbers above 256 overflow, and sums
    of bfloat16 lose their tail. The result is cast back before the weight is applied, which is
    the rounding that Qwen3 was trained with.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).

    Args:
        dim: D, the size of the last axis.
        weight: D.
        eps: keeps a zero vector from dividing by zero.

    Raises:
        ValueError: `weight` does not have shape D.
    """

    def __init__(self, dim: int, weight: mx.array, eps: float = 1e-5):
        if weight.shape != (dim,):
            raise ValueError(f"RMSNorm: weight has shape {weight.shape}, expected ({dim},).")
        self.dim = dim
        self.weight = weight
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        """N..×D -> N..×D."""
        # [task 1.4.1]
        x32 = x.astype(mx.float32)
        mean_square = mx.mean(mx.square(x32), axis=-1, keepdims=True)  # N..×1
        return (x32 * mx.rsqrt(mean_square + self.eps)).astype(x.dtype) * self.weight
        # [/task 1.4.1]
