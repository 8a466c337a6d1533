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


def test_views(instruction_set):
    x, weights = random(6, 4, 40, dtype=mx.bfloat16), random(4, 6)
    for view, own in ((x[::2], weights.T[::2]), (x[:, ::2, 3:20], weights.T[:, ::2])):
        expected = kernels.weighted_sum(mx.contiguous(view), mx.contiguous(own))
        assert_same_bits(kernels.weighted_sum(view, own), expected, "view")


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_empty_inputs(instruction_set, shape):
    total = kernels.weighted_sum(mx.ones(shape), mx.ones(shape[:-1]))
    assert total.shape == (shape[0], shape[2])
    assert not mx.any(total).item()


def test_invalid_arguments_are_rejected():
    x, weights = mx.zeros((2, 3, 4)), mx.zeros((2, 3))
    with pytest.raises(ValueError, match=r"expected weights of shape \(2,3\), got \(2,4\)"):
        kernels.weighted_sum(x, mx.zeros((2, 4)))
    with pytest.raises(ValueError, match=r"expected base of shape \(2,4\), got \(2,3,4\)"):
        kernels.weighted_sum(x, weights, x)
    with pytest.raises(
        ValueError, match="expected base in the dtype of x, .*float32, got .*float16"
    ):
        kernels.weighted_sum(x, weights, mx.zeros((2, 4), mx.float16))
    with pytest.raises(ValueError, match="expected weights in float32, got .*bfloat16"):
        kernels.weighted_sum(x, weights.astype(mx.bfloat16))
    with pytest.raises(ValueError, match=r"expected x N..×K×E, got shape \(4\)"):
        kernels.weighted_sum(mx.zeros(4), weights)
    with pytest.raises(ValueError, match="expected x in float32, float16 or bfloat16"):
        kernels.weighted_sum(x.astype(mx.int32), weights)
