"""`gated_rms_norm` and `sigmoid_gate` compared with exact arithmetic."""

import mlx.core as mx
import numpy as np
import pytest

from tests.ops.recurrent_problems import sigmoid
from tests.support import as_numpy, assert_close, assert_same_bits, random
from tiny_llm import kernels

SHAPES = [(1,), (7,), (1, 16), (3, 33), (2, 5, 64), (2, 1, 3, 128), (300, 130)]
EPS = 1e-6


def gated_rms_norm(o: mx.array, z: mx.array, weight: mx.array) -> mx.array:
    result = kernels.gated_rms_norm(o, z, weight, EPS)
    mx.eval(result)
    return result


def sigmoid_gate(x: mx.array, gate: mx.array) -> mx.array:
    result = kernels.sigmoid_gate(x, gate)
    mx.eval(result)
    return result


def exact(x: mx.array) -> np.ndarray:
    return as_numpy(x).astype(np.float64)


def assert_rounded_once(actual: mx.array, expected: np.ndarray, what: str) -> None:
    """Allows a few float32 roundings and half an ulp of the result's dtype."""
    ulps = 12 if actual.dtype == mx.float32 else 0.51
    assert_close(actual, mx.array(expected.astype(np.float32)), what, ulps)


@pytest.mark.parametrize(
    "own_dtype", [True, False], ids=["weight in z's dtype", "weight in float32"]
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gated_rms_norm_is_exact_up_to_rounding(instruction_set, dtype, shape, own_dtype):
    o, z = random(*shape), random(*shape, dtype=dtype, scale=4)
    weight = random(shape[-1], dtype=dtype if own_dtype else mx.float32)
    n = exact(o) / np.sqrt((exact(o) ** 2).mean(-1, keepdims=True) + EPS)
    expected = n * exact(weight) * exact(z) * sigmoid(exact(z))
    actual = gated_rms_norm(o, z, weight)
    assert actual.dtype == dtype
    assert_rounded_once(actual, expected, "gated_rms_norm")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sigmoid_gate_is_exact_up_to_rounding(instruction_set, dtype, shape):
    x, gate = random(*shape, dtype=dtype), random(*shape, dtype=dtype, scale=4)
    assert_rounded_once(sigmoid_gate(x, gate), exact(x) * sigmoid(exact(gate)), "sigmoid_gate")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gate_per_row(instruction_set, dtype, shape):
    x, gate = random(*shape, dtype=dtype), random(*shape[:-1], 1, dtype=dtype, scale=4)
    expected = sigmoid_gate(x, mx.contiguous(mx.broadcast_to(gate, shape)))
    assert_same_bits(sigmoid_gate(x, gate), expected, "sigmoid_gate")


def test_extreme_gates(instruction_set, dtype):
    gate = mx.array([-1e4, -200, -88, -20, -0.0, 0, 20, 88, 200, 1e4, mx.inf, -mx.inf])
    gate = gate.astype(dtype)
    expected = mx.array([0, 0, 0, 0, 0.5, 0.5, 1, 1, 1, 1, 1, 0])
    actual = sigmoid_gate(mx.ones(gate.shape, dtype), gate)
    assert_close(actual.astype(mx.float32), expected, "sigmoid", ulps=1)
    assert np.isnan(as_numpy(sigmoid_gate(gate[:1], mx.array([mx.nan]).astype(dtype)))).all()
    # Small results keep their relative precision: e^−20, not 1 − 1 / (1 + e^−20).
    tiny = exact(sigmoid_gate(mx.ones((1,)), mx.array([-20.0])))
    np.testing.assert_allclose(tiny, sigmoid(np.array([-20.0])), rtol=1e-6)
