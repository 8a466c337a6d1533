"""The smallest pieces: softmax, the linear layer and SiLU.

Everything else in the package is built from these, from matrix multiplication and from
elementwise arithmetic. This file knows nothing of attention, models or quantization.
"""

import mlx.core as mx


def softmax(x: mx.array, axis: int) -> mx.array:
    """exp(x) / Σ exp(x) along one axis, without overflow.

    Subtracting the maximum does not change the ratio, and keeps every exponent at or below zero.
    Sums run in float32, so that half precision loses nothing over long rows. A row that is −inf
    everywhere has no softmax: the result is NaN.

    Args:
        x: any shape, any floating dtype.
        axis: the axis that sums to one.

    Returns:
        Same shape and dtype as `x`.
    """
    # [task 1.1.1 softmax]
    x32 = x.astype(mx.float32)
    exp = mx.exp(x32 - mx.max(x32, axis=axis, keepdims=True))
    return (exp / mx.sum(exp, axis=axis, keepdims=True)).astype(x.dtype)
    # [/task 1.1.1 softmax]


def linear(x: mx.array, w: mx.array, bias: mx.array | None = None) -> mx.array:
    """x @ wᵀ + bias. Weights are stored output-major, as every checkpoint stores them.

    Args:
        x: N..×I.
        w: O×I.
        bias: O, or None.

    Returns:
        N..×O.
    """
    # [task 1.1.2 linear]
    y = x @ w.T
    return y if bias is None else y + bias
    # [/task 1.1.2 linear]


def silu(x: mx.array) -> mx.array:
    """x · sigmoid(x), also called swish; the gate's activation in Qwen3's MLP.

    exp(-x) overflows for very negative x, in float16 already for x < −11. exp(-|x|) never
    overflows, and sigmoid(-x) = 1 - sigmoid(x) gives the other half.

    Source: Elfwing et al., "Sigmoid-Weighted Linear Units" (2017).

    Args:
        x: any shape, any floating dtype.

    Returns:
        Same shape and dtype as `x`.
    """
    # [task 1.4.2 silu]
    sigmoid_abs = 1 / (1 + mx.exp(-mx.abs(x)))
    return x * mx.where(x < 0, 1 - sigmoid_abs, sigmoid_abs)
    # [/task 1.4.2 silu]
