"""Basic operations: softmax, the linear layer and SiLU.

Attention and the MLP combine these with matrix multiplication and elementwise arithmetic.
"""

import mlx.core as mx


def softmax(x: mx.array, axis: int) -> mx.array:
    """Computes exp(x) / Σ exp(x) along one axis, in the shape and dtype of `x`.

    Subtracting the maximum leaves the ratio unchanged and prevents overflow, because every exponent
    is at or below zero. The result is computed in float32 and rounded once: in half precision, the
    rounding of x − max alone changes exp by several units in the last place. A row of only −inf
    gives NaN.
    """
    # [task 1.1.1 softmax]
    x32 = x.astype(mx.float32)
    exp = mx.exp(x32 - mx.max(x32, axis=axis, keepdims=True))
    return (exp / mx.sum(exp, axis=axis, keepdims=True)).astype(x.dtype)
    # [/task 1.1.1 softmax]


def linear(x: mx.array, w: mx.array, bias: mx.array | None = None) -> mx.array:
    """Computes x @ wᵀ + bias: N..×I -> N..×O.

    Args:
        x: N..×I, where N.. are any leading dimensions.
        w: O×I, the layout in checkpoints.
        bias: O, or None.
    """
    # [task 1.1.2 linear]
    y = x @ w.T
    return y if bias is None else y + bias
    # [/task 1.1.2 linear]


def silu(x: mx.array) -> mx.array:
    """Computes x · sigmoid(x) (swish), the gate activation in Qwen3's MLP.

    With z = exp(−|x|), which never overflows, sigmoid(x) is 1/(1 + z) for x ≥ 0 and z/(1 + z) for
    x < 0. The equivalent 1 − sigmoid(|x|) suffers cancellation: in bfloat16 it is 0 for x ≤ −7.
    The result has the shape and dtype of `x`.

    Source: Elfwing et al., "Sigmoid-Weighted Linear Units" (2017).
    """
    # [task 1.4.2 silu]
    z = mx.exp(-mx.abs(x))
    return x * (mx.where(x < 0, z, 1) / (1 + z))
    # [/task 1.4.2 silu]
