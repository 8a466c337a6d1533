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
