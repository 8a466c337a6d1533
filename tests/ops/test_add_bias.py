"""`add_bias` compared with MLX's sum."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import as_numpy, assert_close, random
from tiny_llm import kernels

SHAPES = [(1,), (7,), (3, 33), (2, 5, 64), (1, 1, 3072), (300, 130)]


def add_bias(x: mx.array, bias: mx.array) -> mx.array:
    result = kernels.add_bias(x, bias)
    mx.eval(result)
    return result


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bitwise_equal_to_sum(instruction_set, dtype, shape):
    x, bias = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype)
    assert_close(add_bias(x, bias), x + bias, "x + bias", ulps=0)


def test_views(instruction_set, dtype):
    both, bias = random(3, 4, 80, dtype=dtype), random(80, dtype=dtype)
    for name, x, own in [
        ("slice of each row", both[..., 20:60], bias[20:60]),
        ("strided", both[..., ::2], bias[::2]),
        ("transposed", both.swapaxes(0, 1), bias),
        ("broadcast", mx.broadcast_to(both[:1], both.shape), bias),
    ]:
        assert_close(add_bias(x, own), x + own, name, ulps=0)


def test_shared_input_is_not_overwritten(instruction_set):
    x, bias = random(3, 64), random(64)
    doubled = x * 2  # not donatable, because another pending operation reads it
    result = kernels.add_bias(doubled, bias)
    mx.eval(result, doubled)
    np.testing.assert_array_equal(as_numpy(doubled), 2 * as_numpy(x))
    np.testing.assert_array_equal(as_numpy(result), as_numpy(2 * x + bias))


def test_no_rows(instruction_set, dtype):
    assert add_bias(mx.zeros((0, 8), dtype), mx.zeros((8,), dtype)).shape == (0, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": mx.zeros((2, 8), mx.int32)}, "expected x in float32, float16 or bfloat16"),
        ({"x": mx.array(1.0, mx.float16)}, "at least one dimension"),
        ({"bias": mx.zeros((8,))}, "expected bias in the dtype of x, float16, got float32"),
        ({"bias": mx.zeros((7,), mx.float16)}, r"expected bias of shape \(8\)"),
        ({"bias": mx.zeros((1, 8), mx.float16)}, r"expected bias of shape \(8\)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_errors_name_the_argument(changes, message):
    arguments = {"x": mx.zeros((2, 8), mx.float16), "bias": mx.zeros((8,), mx.float16)}
    with pytest.raises(ValueError, match=rf"\[add_bias\] .*{message}"):
        kernels.add_bias(**{**arguments, **changes})
