"""Metal kernels of the row operations in tests/ops/operations.py."""

import mlx.core as mx
import pytest

from tests.ops.operations import OPERATIONS
from tests.support import DTYPES, assert_same_bits, random
from tiny_llm import kernels

from .support import DTYPE_NAMES, ORDERS, assert_equals_cpu, gpu_results

ON_GPU = {op.label: op for op in OPERATIONS if op.gpu_ulps is not None}
MODES = ["plain", "asan", "race"]
# Rows and their length; more than a threadgroup's 1,024 threads in the last two.
SHAPES = [(1, 2), (3, 34), (2, 270), (2, 1030), (3, 9002)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
@pytest.mark.parametrize(("M", "I"), SHAPES)
@pytest.mark.parametrize("name", ON_GPU)
def test_equals_cpu(mode, name, M, I, dtype):
    if name == "qk_norm_rope" and I > 270:
        pytest.skip("a head has few numbers")
    op = ON_GPU[name]
    arguments = op.arguments(dtype, M, I)
    for row in op.rows:  # as split from a projection
        arguments[row] = mx.concatenate([arguments[row]] * 2, axis=-1)[
            ..., arguments[row].shape[-1] :
        ]
    for weight_dtype in {dtype, mx.float32} if "weight" in arguments else {dtype}:
        if "weight" in arguments:
            arguments["weight"] = arguments["weight"].astype(weight_dtype)
        assert_equals_cpu(
            mode, lambda s: op(stream=s, **arguments), op.gpu_ulps, order=("random", 1)
        )


@pytest.mark.parametrize("name", ON_GPU)
def test_few_threads_and_any_lane_order(name):
    op = ON_GPU[name]
    arguments = op.arguments(mx.bfloat16, 2, 250)

    def call(stream):
        return op(stream=stream, **arguments)

    for max_threads in (1024, 32, 33, 64):
        assert_equals_cpu("plain", call, op.gpu_ulps, max_threads=max_threads)
    first, *others = (gpu_results(call, order=order) for order in ORDERS)
    for other in others:
        for actual, expected in zip(other, first, strict=True):
            assert_same_bits(actual, expected, "another order")


def test_sum_of_add_rms_norm_is_bitwise_equal():
    x, y, weight = random(2, 1030), random(2, 1030), random(1030)
    actual, expected = (
        kernels.add_rms_norm(x, y, weight, 1e-6, stream=mx.cpu)[0],
        gpu_results(lambda s: kernels.add_rms_norm(x, y, weight, 1e-6, stream=s))[0],
    )
    assert_same_bits(actual, expected, "sum")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
def test_gate_per_row(mode, dtype):
    z = random(9, 40, dtype=dtype, scale=4)
    assert_equals_cpu(mode, lambda s: (kernels.sigmoid_gate(z, z[:, 3:4], stream=s),), 16)


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
def test_swiglu_of_extreme_values(dtype):
    gate = mx.array([[-1e4, 1e4, -88.0, 88.0, 0.0, mx.nan, mx.inf, -mx.inf]]).astype(dtype)
    up = mx.ones_like(gate)
    assert_equals_cpu("plain", lambda s: (kernels.swiglu(gate, up, stream=s),), ulps=4)
