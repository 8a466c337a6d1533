"""`weighted_sum` compared with NumPy; bitwise equal on all instruction sets."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import as_numpy, assert_close, assert_same_bits, random
from tiny_llm import kernels


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 5), (2, 3, 4, 67), (1, 8, 2048), (5, 3, 16)])
def test_equals_numpy(instruction_set, dtype, shape):
    x, weights = random(*shape, dtype=dtype), random(*shape[:-1])
    total = kernels.weighted_sum(x, weights)
    mx.eval(total)
    assert total.dtype == dtype
    expected = np.zeros((*shape[:-2], shape[-1]), np.float32)
    for k in range(shape[-2]):  # every product and sum is rounded to float32
        expected += as_numpy(weights)[..., k, None] * as_numpy(x)[..., k, :]
    assert_same_bits(total, mx.array(expected).astype(dtype), str(shape))


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 4, 67), (5, 3, 16)])
def test_base_is_added_first(instruction_set, dtype, shape):
    x, weights = random(*shape, dtype=dtype), random(*shape[:-1])
    base = random(*shape[:-2], shape[-1], dtype=dtype)
    total = kernels.weighted_sum(x, weights, base)
    expected = as_numpy(base).astype(np.float32)
    for k in range(shape[-2]):
        expected = expected + as_numpy(weights)[..., k, None] * as_numpy(x)[..., k, :]
    assert_same_bits(total, mx.array(expected).astype(dtype), str(shape))
    assert_same_bits(kernels.weighted_sum(x, weights, base[..., ::-1][..., ::-1]), total, "view")


def test_on_any_device(device, dtype):
    x, weights = random(4, 3, 33, dtype=dtype), random(4, 3)
    expected = (as_numpy(x) * as_numpy(weights)[..., None]).sum(-2)
    assert_close(kernels.weighted_sum(x, weights), mx.array(expected).astype(dtype), "sum")
    base = random(4, 33, dtype=dtype)
    expected += as_numpy(base)
    assert_close(
        kernels.weighted_sum(x, weights, base), mx.array(expected).astype(dtype), "with base"
    )


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_empty_inputs(instruction_set, shape):
    total = kernels.weighted_sum(mx.ones(shape), mx.ones(shape[:-1]))
    assert total.shape == (shape[0], shape[2])
    assert not mx.any(total).item()
