"""Basic operations: softmax, the linear layer and SiLU.

The rest of the model is built from these, matrix multiplication and elementwise arithmetic.
"""

import mlx.core as mx


def softmax(x: mx.array, axis: int) -> mx.array:
    """Computes exp(x) / Σ exp(x) along one axis, without overflow.

    Subtracting the maximum leaves the ratio unchanged and keeps every exponent at or below zero.
    Sums are accumulated in float32, which avoids losing half-precision terms in long rows. A row
    of −inf has no softmax: the result is NaN.

    Args:
        x: any shape, any floating dtype.
        axis: the axis to normalize over.

    Returns:
        Same shape and dtype as `x`.
    """
    # [task 1.1.1 softmax]
    x32 = x.astype(mx.float32)
    exp = mx.exp(x32 - mx.max(x32, axis=axis, keepdims=True))
    return (exp / mx.sum(exp, axis=axis, keepdims=True)).astype(x.dtype)
    # [/task 1.1.1 softmax]


def linear(x: mx.array, w: mx.array, bias: mx.array | None = None) -> mx.array:
    """Computes x @ wᵀ + bias. Weights are O×I, as in every checkpoint.

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
    """Computes x · sigmoid(x), also called swish: the gate activation in Qwen3's MLP.

    exp(-x) overflows for very negative x (in float16, for x < −11). exp(-|x|) never overflows, and
    sigmoid(-x) = 1 - sigmoid(x) covers negative x.

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
