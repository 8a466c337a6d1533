"""`rms_norm`, `add_rms_norm`: compared with the layer, exact values and MLX."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import EPSILON, as_numpy, assert_close, random
from tiny_llm import kernels
from tiny_llm.layer_norm import RMSNorm

EPS = 1e-6
SHAPES = [(1,), (7,), (1, 16), (3, 33), (2, 5, 64), (1, 1, 1024), (4, 1023), (300, 130)]


def rms_norm(x: mx.array, weight: mx.array) -> mx.array:
    result = kernels.rms_norm(x, weight, EPS)
    mx.eval(result)
    return result


def add_rms_norm(x: mx.array, y: mx.array, weight: mx.array) -> tuple[mx.array, mx.array]:
    results = kernels.add_rms_norm(x, y, weight, EPS)
    mx.eval(results)
    return results


def problem(*shape: int, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    return random(*shape, dtype=dtype), (1 + 0.3 * random(shape[-1])).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_is_exact_up_to_rounding(instruction_set, dtype, shape):
    x, weight = problem(*shape, dtype=dtype)
    x64, w64 = as_numpy(x).astype(np.float64), as_numpy(weight).astype(np.float64)
    expected = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + EPS) * w64
    # Half an epsilon each for the normalized row and for its product with the weight. In float32,
    # the sum of D squares has an error below D·ε/2, which the root halves; root, division and
    # product add less than 3 ε. 2⁻²⁴ is the spacing of float16's subnormal numbers.
    bound = np.abs(expected) * (EPSILON[dtype] + (shape[-1] / 4 + 3) * EPSILON[mx.float32])
    error = np.abs(as_numpy(rms_norm(x, weight)) - expected)
    assert (error <= 1.01 * bound + 2.0**-24).all(), (
        f"the largest error is {(error / (bound + 2.0**-24)).max():.2f} × its bound"
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_readable_layer(instruction_set, dtype, shape):
    x, weight = problem(*shape, dtype=dtype)
    layer = RMSNorm(shape[-1], weight, eps=EPS)
    # rms_norm and RMSNorm sum in different orders, which can change one rounding. In float32, the
    # error of RMSNorm's sequential sum is up to D roundings.
    ulps = 2 if dtype != mx.float32 else 2 + shape[-1] / 16
    assert_close(rms_norm(x, weight), layer(x), "rms_norm compared with RMSNorm", ulps)
    expected = mx.fast.rms_norm(x, weight, EPS, stream=mx.cpu)
    assert_close(rms_norm(x, weight), expected, "rms_norm compared with mx.fast", ulps)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float32_weight_is_exact_up_to_one_rounding(instruction_set, dtype, shape):
    x, y, weight = random(*shape, dtype=dtype), random(*shape, dtype=dtype), random(shape[-1])
    total, normed = add_rms_norm(x, y, weight)
    assert normed.dtype == dtype
    x64, w64 = as_numpy(total).astype(np.float64), as_numpy(weight).astype(np.float64)
    expected = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + EPS) * w64
    rounding = EPSILON[dtype] / 2 + (shape[-1] / 4 + 3) * EPSILON[mx.float32]
    error = np.abs(as_numpy(normed) - expected)
    assert (error <= 1.01 * np.abs(expected) * rounding + 2.0**-25).all()
    in_float32 = rms_norm(total.astype(mx.float32), weight).astype(dtype)
    assert_close(normed, in_float32, "the float32 norm, rounded", ulps=0)
    assert_close(rms_norm(total, weight), normed, "without the addition", ulps=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_add_rms_norm_equals_sum_and_norm(instruction_set, dtype, shape):
    x, weight = problem(*shape, dtype=dtype)
    y = random(*shape, dtype=dtype)
    total, normalized = add_rms_norm(x, y, weight)
    assert_close(total, x + y, "sum", ulps=0)
    assert_close(normalized, rms_norm(x + y, weight), "norm of the sum", ulps=0)


def test_zeros_stay_zeros(instruction_set, dtype):
    x, weight = problem(2, 40, dtype=dtype)
    np.testing.assert_array_equal(as_numpy(rms_norm(0 * x, weight)), 0)


def test_works_inside_mx_compile(instruction_set):
    x, weight = problem(3, 40, dtype=mx.float16)
    compiled = mx.compile(lambda x: kernels.add_rms_norm(x, x, weight, EPS)[1])
    assert_close(compiled(x), add_rms_norm(x, x, weight)[1], "mx.compile", ulps=0)
