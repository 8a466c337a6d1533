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


def test_bias_of_each_rows_expert(instruction_set, dtype):
    bias = random(5, 70, dtype=dtype)
    for shape in ((7,), (3, 4), (2, 3, 4), (0, 4)):
        x, experts = random(*shape, 70, dtype=dtype), mx.random.randint(0, 5, shape, mx.uint32)
        actual = kernels.add_bias(x, bias, experts)
        assert_close(actual, x + bias[experts], str(shape), ulps=0)
    experts = mx.random.randint(0, 5, (3, 8), mx.uint32)[:, ::2]  # strided
    x = random(3, 4, 70, dtype=dtype)
    assert_close(kernels.add_bias(x, bias, experts), x + bias[experts], "strided", ulps=0)
    last = kernels.add_bias(x, bias, mx.full((3, 4), 2**32 - 1, mx.uint32))
    assert_close(last, x + bias[4], "beyond the last expert", ulps=0)


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
        ({"experts": mx.zeros((2,), mx.uint32)}, r"bias of shape \(X,8\) with experts, got \(8\)"),
        (
            {"bias": mx.zeros((3, 8), mx.float16), "experts": mx.zeros((2,), mx.int32)},
            "experts in uint32, one for each row of x .*, got int32",
        ),
        (
            {"bias": mx.zeros((3, 8), mx.float16), "experts": mx.zeros((3,), mx.uint32)},
            r"got uint32 of shape \(3\)",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_errors_name_the_argument(changes, message):
    arguments = {"x": mx.zeros((2, 8), mx.float16), "bias": mx.zeros((8,), mx.float16)}
    with pytest.raises(ValueError, match=rf"\[add_bias\] .*{message}"):
        kernels.add_bias(**{**arguments, **changes})
