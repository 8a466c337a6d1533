"""`swiglu` compared with Week 1's `silu`, exact arithmetic and MLX."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from tests.support import EPSILON, as_numpy, assert_close, random
from tiny_llm import kernels
from tiny_llm.basics import silu

SHAPES = [(1,), (7,), (1, 16), (3, 33), (2, 5, 64), (1, 1, 3072), (300, 130)]


def swiglu(gate: mx.array, up: mx.array, activation: str = "silu") -> mx.array:
    result = kernels.swiglu(gate, up, activation)
    mx.eval(result)
    return result


def problem(*shape: int, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    return random(*shape, dtype=dtype, scale=4), random(*shape, dtype=dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_readable_layer(instruction_set, dtype, shape):
    gate, up = problem(*shape, dtype=dtype)
    # swiglu and silu compute exponentials that may differ in the last bits, which occasionally
    # changes a rounding.
    assert_close(swiglu(gate, up), silu(gate) * up, "swiglu compared with silu · up", ulps=1)
    with mx.stream(mx.cpu):
        expected = nn.silu(gate) * up
    # swiglu rounds other intermediate results than MLX, which rounds e^|x|, y = 1 + e^|x|, 1/y,
    # 1 − 1/y and two products.
    assert_close(swiglu(gate, up), expected, "swiglu compared with MLX's silu", ulps=3)


@pytest.mark.parametrize("half", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
def test_every_half_is_bitwise_equal_to_readable_layer(instruction_set, half):
    # Covers every value of the 16-bit dtype. swiglu and silu compute exp(−|x|) in float32, with
    # errors of an ulp or two, and round it to this dtype; no value is close enough to a rounding
    # boundary for the errors to matter.
    gate = mx.arange(65536, dtype=mx.uint16).view(half)
    up = mx.full(gate.shape, 1.5, half)
    expected = silu(gate) * up
    mx.eval(expected)
    actual, expected = as_numpy(swiglu(gate, up)), as_numpy(expected)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    # Below −87.3, the exponential is subnormal in float32 and zero in some implementations.
    tiny = as_numpy(gate) < -87.3
    assert np.nanmax(np.abs(actual[tiny])) < 2e-36
    rest = ~tiny & ~np.isnan(expected)
    np.testing.assert_array_equal(actual[rest], expected[rest], "bitwise")


def test_is_exact_up_to_rounding(instruction_set, dtype):
    gate, up = problem(2000, dtype=dtype)
    g64, u64 = as_numpy(gate).astype(np.float64), as_numpy(up).astype(np.float64)
    expected = g64 / (1 + np.exp(-g64)) * u64
    # Five roundings of half an epsilon each, plus the error of the exponential; below float16's
    # smallest normal number, 2^-14, an exponential is rounded by up to 2^-25.
    bound = 4 * EPSILON[dtype] * np.abs(expected) + 2.0**-24 * (1 + np.abs(g64 * u64))
    error = np.abs(as_numpy(swiglu(gate, up)) - expected)
    assert (error <= bound).all(), f"the largest error is {(error / bound).max():.2f} × its bound"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gelu_equals_mlx(instruction_set, dtype, shape):
    gate, up = problem(*shape, dtype=dtype)
    # Like PyTorch's, computed in float32 and rounded once.
    expected = nn.gelu_approx(gate.astype(mx.float32)).astype(dtype) * up
    assert_close(swiglu(gate, up, "gelu_tanh"), expected, "GeGLU", ulps=3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_clamped_swiglu_equals_mlx_lm(instruction_set, dtype, shape):
    activations = pytest.importorskip("mlx_lm.models.activations")
    gate, up = problem(*shape, dtype=dtype)
    gate, up = 3 * gate, 3 * up  # beyond the limit of 7
    inputs = up.astype(mx.float32), gate.astype(mx.float32)
    expected = activations.SwigluOAI()(*inputs).astype(dtype)
    assert_close(swiglu(gate, up, "swigluoai"), expected, "gpt-oss", ulps=3)
