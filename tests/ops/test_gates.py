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


def test_rows_are_batch_invariant(instruction_set, dtype):
    o, z, weight = random(50, 101), random(50, 101, dtype=dtype), random(101)
    normed, gated = gated_rms_norm(o, z, weight), sigmoid_gate(z, z[::-1])
    for row in (0, 17, 49):
        assert_same_bits(gated_rms_norm(o[row], z[row], weight), normed[row], "gated_rms_norm")
        assert_same_bits(sigmoid_gate(z[row], z[49 - row]), gated[row], "sigmoid_gate")


def test_views(instruction_set, dtype):
    """Inputs may be views: a projection interleaves queries and gates per head."""
    projected = random(5, 3, 2, 16, dtype=dtype)
    query, gate = projected[:, :, 0], projected[:, :, 1]
    o, weight = random(5, 3, 32)[..., ::2], random(32)[::2]
    expected = sigmoid_gate(mx.contiguous(query), mx.contiguous(gate))
    assert_same_bits(sigmoid_gate(query, gate), expected, "sigmoid_gate")
    expected = gated_rms_norm(mx.contiguous(o), mx.contiguous(gate), mx.contiguous(weight))
    assert_same_bits(gated_rms_norm(o, gate, weight), expected, "gated_rms_norm")


def test_shared_inputs_are_not_overwritten(instruction_set):
    o, z = random(3, 64), random(3, 64, dtype=mx.bfloat16)
    doubled = z * 2  # not donatable, because another pending operation reads it
    results = gated_rms_norm(o, doubled, o[0]), sigmoid_gate(doubled, z)
    np.testing.assert_array_equal(as_numpy(doubled), 2 * as_numpy(z))
    assert_same_bits(kernels.gated_rms_norm(o, z * 2, o[0], EPS), results[0], "in place")
    assert_same_bits(kernels.sigmoid_gate(z * 2, z), results[1], "in place")


def test_no_elements(instruction_set, dtype):
    for shape in [(0, 8), (3, 0), (0,)]:
        z = mx.zeros(shape, dtype)
        assert gated_rms_norm(mx.zeros(shape), z, mx.zeros(shape[-1:])).shape == shape
        assert sigmoid_gate(z, z).shape == shape


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"o": mx.zeros((2, 8), mx.float16)}, "expected o in float32, got float16"),
        ({"z": mx.zeros((2, 8), mx.int32)}, "expected z in float32, float16 or bfloat16"),
        ({"z": mx.zeros((1, 8), mx.float16)}, "expected z of the shape of o"),
        ({"weight": mx.zeros((7,))}, r"expected weight of shape \(8\)"),
        ({"weight": mx.zeros((8,), mx.bfloat16)}, "float32 or the dtype of z, float16, got"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_invalid_arguments_of_gated_rms_norm(changes, message):
    good = {"o": mx.zeros((2, 8)), "z": mx.zeros((2, 8), mx.float16), "weight": mx.zeros((8,))}
    with pytest.raises(ValueError, match=rf"\[gated_rms_norm\] .*{message}"):
        kernels.gated_rms_norm(**{**good, **changes}, eps=EPS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": mx.zeros((2, 8), mx.int32)}, "expected x in float32, float16 or bfloat16"),
        ({"x": mx.array(1.0, mx.float16)}, "at least one dimension"),
        ({"gate": mx.zeros((2, 8))}, "expected gate in the dtype of x, float16, got float32"),
        ({"gate": mx.zeros((1, 8), mx.float16)}, r"expected gate of the shape of x, .*or \(2,1\)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_invalid_arguments_of_sigmoid_gate(changes, message):
    zeros = mx.zeros((2, 8), mx.float16)
    with pytest.raises(ValueError, match=rf"\[sigmoid_gate\] .*{message}"):
        kernels.sigmoid_gate(**{"x": zeros, "gate": zeros, **changes})
