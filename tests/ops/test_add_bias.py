"""`add_bias` compared with MLX's sum."""

import mlx.core as mx
import pytest

from tests.support import assert_close, random
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
