"""Values of the row operations: readable layers, exact arithmetic, MLX."""

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from tests.ops.operations import EPS, OPERATIONS, Arguments
from tests.ops.recurrent_problems import sigmoid
from tests.support import EPSILON, as_numpy, assert_close, assert_equal, assert_same_bits, random
from tiny_llm import kernels
from tiny_llm.basics import linear, silu
from tiny_llm.kernels.graph_capture import CapturedFunction
from tiny_llm.quantize import project

BY_LABEL = {op.label: op for op in OPERATIONS}
SHAPES = [(1, 1), (1, 7), (2, 16), (3, 33), (10, 64), (1, 3072), (300, 130)]  # rows, row length

# The expected result: an array and its tolerance in ulps, or float64 numbers and their bounds.
Expected = tuple[mx.array, float] | tuple[np.ndarray, np.ndarray]


def exact(x: mx.array) -> np.ndarray:
    return as_numpy(x).astype(np.float64)


def rounded_once(expected: np.ndarray, dtype: mx.Dtype) -> Expected:
    """Allows a few float32 roundings and half an ulp of the result's dtype."""
    return mx.array(expected.astype(np.float32)), 12 if dtype == mx.float32 else 0.51


def add_bias(x, bias, experts=None) -> Expected:
    return x + (bias if experts is None else bias[experts]), 0


def scaled_sum(x, y, scale) -> Expected:
    return ((x + y).astype(mx.float32) * mx.array(scale)).astype(x.dtype), 0


def weighted_sum(x, weights, base=None) -> Expected:
    """Adds the base first; every product and sum is rounded to float32."""
    total = as_numpy(x[..., 0, :] * 0 if base is None else base)
    for k in range(x.shape[-2]):
        total = total + as_numpy(weights)[..., k, None] * as_numpy(x)[..., k, :]
    return mx.array(total).astype(x.dtype), 0


def swiglu(gate, up) -> Expected:
    """Five roundings of half an epsilon each, plus the error of the exponential.

    Below float16's smallest normal number, 2^-14, an exponential is rounded by up to 2^-25.
    """
    g, u = exact(gate), exact(up)
    expected = g * sigmoid(g) * u
    bound = 4 * EPSILON[gate.dtype] * np.abs(expected) + 2.0**-24 * (1 + np.abs(g * u))
    return expected, bound


def geglu(gate, up) -> Expected:
    """Like PyTorch's, computed in float32 and rounded once."""
    return nn.gelu_approx(gate.astype(mx.float32)).astype(gate.dtype) * up, 3


def clamped_swiglu(gate, up) -> Expected:
    activations = pytest.importorskip("mlx_lm.models.activations")
    inputs = up.astype(mx.float32), gate.astype(mx.float32)
    return activations.SwigluOAI()(*inputs).astype(gate.dtype), 3


def rms_norm(x, weight, eps) -> Expected:
    """Half an epsilon each for the normalized row and for its product with the weight.

    With a float32 weight, the product alone is rounded. In float32, the sum of D squares has an
    error below D·ε/2, which the root halves; root, division and product add less than 3 ε. 2⁻²⁴ is
    the spacing of float16's subnormal numbers.
    """
    x64, roundings = exact(x), 1 if weight.dtype == mx.float32 else 2
    expected = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + eps) * exact(weight)
    relative = roundings * EPSILON[x.dtype] / 2 + (x.shape[-1] / 4 + 3) * EPSILON[mx.float32]
    return expected, 1.01 * np.abs(expected) * relative + roundings * 2.0**-25


def add_rms_norm(x, y, weight, eps) -> list[Expected]:
    return [(x + y, 0), (kernels.rms_norm(x + y, weight, eps), 0)]


def gated_rms_norm(o, z, weight, eps) -> Expected:
    n = exact(o) / np.sqrt((exact(o) ** 2).mean(-1, keepdims=True) + eps)
    return rounded_once(n * exact(weight) * exact(z) * sigmoid(exact(z)), z.dtype)


def sigmoid_gate(x, gate) -> Expected:
    if gate.shape != x.shape:  # a gate per row
        return kernels.sigmoid_gate(x, mx.contiguous(mx.broadcast_to(gate, x.shape))), 0
    return rounded_once(exact(x) * sigmoid(exact(gate)), x.dtype)


def exact_matmul(a, b) -> Expected:
    """One rounding to the output dtype, and I float32 additions of terms that sum to Σ |a·b|."""
    a64, b64, I = exact(a), exact(b), a.shape[-1]
    sums = I * EPSILON[mx.float32] / 2 * (np.abs(a64) @ np.abs(b64).T)
    expected = a64 @ b64.T
    return expected, 1.01 * (EPSILON[a.dtype] / 2 * np.abs(expected) + sums + 2.0**-25)


def add_lora(y, x, lora_a, lora_b, rank_offsets, adapter_ids) -> Expected:
    wide, x64, a, b = (exact(array) for array in (y, x, lora_a, lora_b))
    bounds = rank_offsets.tolist()
    for row, adapter in enumerate(adapter_ids.tolist()):
        if 0 <= adapter < len(bounds) - 1:
            own = slice(bounds[adapter], bounds[adapter + 1])
            wide[row] += x64[row] @ a[own].T @ b[own]
    return mx.array(wide.astype(np.float32)).astype(y.dtype), 4


REFERENCES: list[tuple[str, Callable]] = [
    ("add_bias", add_bias),
    ("add_bias-experts", add_bias),
    ("scaled_sum", scaled_sum),
    ("weighted_sum", weighted_sum),
    ("swiglu", swiglu),
    ("swiglu-gelu_tanh", geglu),
    ("swiglu-swigluoai", clamped_swiglu),
    ("rms_norm", rms_norm),
    ("add_rms_norm", add_rms_norm),
    ("gated_rms_norm", gated_rms_norm),
    ("sigmoid_gate", sigmoid_gate),
    ("matmul", exact_matmul),
    ("add_lora", add_lora),
]
CASES = [(kernel, of, shape) for kernel, of in REFERENCES for shape in SHAPES]
CASES += [("matmul", exact_matmul, (2, 0)), ("add_lora", add_lora, (2, 0))]


def with_variants(arguments: Arguments, dtype: mx.Dtype) -> list[Arguments]:
    """The arguments, and changed ones, such as a weight of the other dtype or no base."""
    variants = [arguments]
    variants += [arguments | {"scale": scale} for scale in (1.0, -2.5) if "scale" in arguments]
    if "weight" in arguments:
        other = mx.float32 if arguments["weight"].dtype == dtype else dtype
        variants.append(arguments | {"weight": arguments["weight"].astype(other)})
    if "base" in arguments:
        variants.append({name: x for name, x in arguments.items() if name != "base"})
        M, _, I = arguments["x"].shape
        for K in (1, 8):
            sizes = {"x": random(M, K, I, dtype=dtype), "weights": random(M, K)}
            variants.append(arguments | sizes)
    if arguments.keys() == {"x", "gate"}:
        variants.append(arguments | {"gate": arguments["gate"][:, :1]})
    return variants


@pytest.mark.parametrize(("kernel", "reference", "shape"), CASES)
def test_equals_reference(instruction_set, dtype, kernel, reference, shape):
    op = BY_LABEL[kernel]
    for arguments in with_variants(op.arguments(dtype, *shape), dtype):
        expected = reference(**arguments)
        actual = op(**arguments)
        pairs = zip(actual, expected if len(actual) > 1 else [expected], strict=True)
        for result, (values, tolerance) in pairs:
            if isinstance(tolerance, np.ndarray):
                error = np.abs(as_numpy(result) - values)
                assert result.shape == values.shape
                assert (error <= tolerance).all(), (
                    f"{kernel}: the error is up to {(error / tolerance).max():.2f} × its bound"
                )
            else:
                assert result.dtype == dtype
                assert_close(result, values, kernel, tolerance)


@pytest.mark.parametrize("name", ["add_lora", "weighted_sum"])
def test_operations_without_a_gpu_kernel_run_on_any_device(device, dtype, name):
    op = BY_LABEL[name]
    arguments = op.arguments(dtype, 6, 33)
    [actual], [expected] = op(**arguments), op(stream=mx.cpu, **arguments)
    assert_close(actual, expected, name)


@pytest.mark.parametrize("half", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
def test_swiglu_of_every_half_is_bitwise_equal_to_readable_layer(instruction_set, half):
    # Covers every value of the 16-bit dtype. swiglu and silu compute exp(−|x|) in float32, with
    # errors of an ulp or two, and round it to this dtype; no value is close enough to a rounding
    # boundary for the errors to matter.
    gate = mx.arange(65536, dtype=mx.uint16).view(half)
    up = mx.full(gate.shape, 1.5, half)
    result, expected = kernels.swiglu(gate, up), silu(gate) * up
    mx.eval(result, expected)
    actual, expected = as_numpy(result), as_numpy(expected)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    # Below −87.3, the exponential is subnormal in float32 and zero in some implementations.
    tiny = as_numpy(gate) < -87.3
    assert np.nanmax(np.abs(actual[tiny])) < 2e-36
    rest = ~tiny & ~np.isnan(expected)
    np.testing.assert_array_equal(actual[rest], expected[rest], "bitwise")


def test_extreme_gates(instruction_set, dtype):
    gate = mx.array([-1e4, -200, -88, -20, -0.0, 0, 20, 88, 200, 1e4, mx.inf, -mx.inf])
    gate = gate.astype(dtype)
    expected = mx.array([0, 0, 0, 0, 0.5, 0.5, 1, 1, 1, 1, 1, 0])
    actual = kernels.sigmoid_gate(mx.ones(gate.shape, dtype), gate)
    assert_close(actual.astype(mx.float32), expected, "sigmoid", ulps=1)
    nan = kernels.sigmoid_gate(gate[:1], mx.array([mx.nan]).astype(dtype))
    assert mx.isnan(nan).all()
    # Small results keep their relative precision: e^−20, not 1 − 1 / (1 + e^−20).
    tiny = exact(kernels.sigmoid_gate(mx.ones((1,)), mx.array([-20.0])))
    np.testing.assert_allclose(tiny, sigmoid(np.array([-20.0])), rtol=1e-6)


def test_zeros_stay_zeros(instruction_set, dtype):
    zeros = mx.zeros((2, 40), dtype)
    assert_same_bits(kernels.rms_norm(zeros, random(40, dtype=dtype) + 2, EPS), zeros, "rms_norm")
    assert not kernels.weighted_sum(mx.ones((2, 0, 3), dtype), mx.ones((2, 0))).any()


def test_norm_inside_mx_compile(instruction_set):
    x, weight = random(3, 40, dtype=mx.float16), random(40, dtype=mx.float16)

    def norm(x):
        return kernels.add_rms_norm(x, x, weight, EPS)[1]

    assert_close(mx.compile(norm)(x), norm(x), "mx.compile", ulps=0)


def test_bias_beyond_the_last_expert(instruction_set, dtype):
    x, bias = random(3, 4, 70, dtype=dtype), random(5, 70, dtype=dtype)
    actual = kernels.add_bias(x, bias, mx.full((3, 4), 2**32 - 1, mx.uint32))
    assert_close(actual, x + bias[4], "the last expert's", ulps=0)


@pytest.mark.parametrize("M", [2, 5, 64, 131])
def test_outputs_do_not_depend_on_other_rows_of_b(instruction_set, dtype, M):
    a, b = random(M, 131, dtype=dtype), random(70, 131, dtype=dtype)
    together = kernels.matmul(a, b)
    mx.eval(together)
    for output in (0, 67, 69):
        alone = kernels.matmul(a, b[output : output + 1])
        assert_same_bits(alone[:, 0], together[:, output], f"output {output}")
    assert kernels.matmul(a, b[:0]).shape == (M, 0)


def test_project_uses_matmul_for_half_precision(dtype):
    x, w = random(3, 64, dtype=dtype), random(33, 64, dtype=dtype)
    expected = linear(x, w) if dtype == mx.float32 else kernels.matmul(x, w)
    assert_close(project(x, w), expected, "project", ulps=0)
    assert_equal(project(x, w.astype(mx.float32)).dtype, mx.float32, "mixed dtypes to be promoted")


def test_rows_without_an_adapter_are_unchanged(instruction_set, dtype):
    arguments = BY_LABEL["add_lora"].arguments(dtype, 5, 50)
    y, x = arguments["y"], arguments["x"]
    [actual] = BY_LABEL["add_lora"](**arguments | {"adapter_ids": mx.array([-1, 0, 4, -7, 99])})
    for row in (0, 2, 3, 4):
        assert_same_bits(actual[row], y[row], f"row {row}")
    assert not mx.array_equal(actual[1], y[1]).item()
    none, offsets = mx.zeros((0, 50), dtype), mx.zeros(1, mx.int32)
    without = kernels.add_lora(
        y, x, none, mx.zeros((0, 203), dtype), offsets, mx.zeros(5, mx.int32)
    )
    assert_same_bits(without, y, "no adapters")


def test_captured_graph_reads_the_adapter_ids_of_each_step(on_cpu):
    given = BY_LABEL["add_lora"].arguments(mx.float32, 3, 40)
    first, weight = given["x"][None], random(203, 40)

    def layer(x: mx.array, ids: mx.array) -> tuple[mx.array]:
        changes = {"x": x, "y": kernels.matmul(x, weight), "adapter_ids": ids}
        return (kernels.add_lora(**given | changes),)

    captured = CapturedFunction(layer)
    for numbers in ([0, 1, -1], [1, 1, 0], [-1, -1, -1]):
        ids = mx.array(numbers, dtype=mx.int32)
        actual, expected = captured(first, ids), layer(first, ids)
        assert_same_bits(actual[0], expected[0], f"ids {numbers}")
    assert captured._graph_cache is not None
