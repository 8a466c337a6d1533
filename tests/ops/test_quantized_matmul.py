"""`quantized_matmul`: batch invariance, layouts and invalid arguments."""

import mlx.core as mx
import numpy as np
import pytest

from tests.ops.quantized_matmul_problems import (
    HALVES,
    assert_exact_but_for_rounding,
    assert_fixed_point_kernels_are_bitwise_equal,
    evaluated,
    problem,
)
from tests.support import (
    as_numpy,
    assert_close,
    assert_same_bits,
    assert_same_on_any_number_of_threads,
    random,
)
from tiny_llm import quantized_matmul


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("outlier", [100, 1e4, 255, -255])
def test_outliers_and_tiny_numbers(instruction_set, bits, half, outlier):
    scales, biases, group_size, _, a, b = problem(5, 256, 40, bits, 128, half)
    a[0, 3] = outlier  # in the first of two groups of the row
    a[1] *= 1e-4
    a[2, :128] = 0
    a[3] = a[3] * 2.0 ** (-10 * mx.random.uniform(shape=(256,)))
    a[4] = 2.0**-24 if half == mx.float16 else 2.0**-100
    assert_exact_but_for_rounding(instruction_set, (scales, biases, group_size, bits, a, b))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("M", [2, 3, 5, 6, 7, 13, 64, 193, 389])
def test_rows_are_batch_invariant(instruction_set, bits, half, M):
    scales, biases, group_size, _, a, b = problem(M, 256, 70, bits, 64, half)
    together = as_numpy(evaluated(scales, biases, group_size, bits, a, b))
    for row in {0, 1, M // 2, M - 1}:
        alone = evaluated(scales, biases, group_size, bits, a[row : row + 1], b)
        np.testing.assert_array_equal(as_numpy(alone)[0], together[row], "bitwise")


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_many_long_rows_are_bitwise_equal_to_few(instruction_set, dtype):
    """With AMX, the activations exceed the cache and are processed in parts of 128 (64) rows."""
    scales, biases, group_size, bits, a, b = problem(270, 4096, 70, 4, 128, dtype)
    together = evaluated(scales, biases, group_size, bits, a, b)
    for first in range(0, 270, 60):
        some = evaluated(scales, biases, group_size, bits, a[first : first + 60], b)
        assert_same_bits(together[first : first + 60], some, f"rows from {first}")


def test_bitwise_equal_for_any_thread_count():
    program = (
        "import mlx.core as mx, numpy as np, tiny_llm_ext as t; mx.random.seed(3);"
        "w = mx.random.normal((1030, 512)).astype(mx.bfloat16);"
        "a = mx.random.normal((9, 512)).astype(mx.bfloat16);"
        "q, s, b = mx.quantize(w, group_size=64, bits=4);"
        "y = t.quantized_matmul(s, b, 64, 4, a, q, stream=mx.cpu).astype(mx.float32);"
        "print(t.num_threads(), hash(np.array(y).tobytes()))"
    )
    assert_same_on_any_number_of_threads(program)


@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("M", [1, 2, 3, 16, 33])
def test_fixed_point_kernels_are_bitwise_equal(monkeypatch, half, bits, group_size, M):
    arguments = problem(M, 384, 70, bits, group_size, half)
    assert_fixed_point_kernels_are_bitwise_equal(monkeypatch, arguments)


def test_strided_activations(instruction_set):
    scales, biases, group_size, bits, _, b = problem(1, 128, 64, 4, 64, mx.bfloat16)
    a = random(6, 256, dtype=mx.bfloat16)[::2, ::2]
    expected = evaluated(scales, biases, group_size, bits, mx.contiguous(a), b)
    assert_close(evaluated(scales, biases, group_size, bits, a, b), expected, "strides", ulps=0)


def test_no_rows_and_no_outputs(instruction_set):
    scales, biases, group_size, bits, _, b = problem(1, 128, 64, 4, 64, mx.bfloat16)
    empty = evaluated(scales, biases, group_size, bits, mx.zeros((0, 128), mx.bfloat16), b)
    assert empty.shape == (0, 64)
    a = mx.zeros((2, 128), mx.bfloat16)
    assert evaluated(scales[:0], biases[:0], group_size, bits, a, b[:0]).shape == (2, 0)


@pytest.mark.parametrize("value", [mx.nan, mx.inf, -mx.inf])
def test_nan_and_infinity_stay_in_their_row(instruction_set, value):
    scales, biases, group_size, bits, a, b = problem(3, 128, 64, 4, 64, mx.bfloat16)
    clean = as_numpy(evaluated(scales, biases, group_size, bits, a, b))
    a[1, 5] = value
    dirty = as_numpy(evaluated(scales, biases, group_size, bits, a, b))
    assert not np.isfinite(dirty[1]).any()
    np.testing.assert_array_equal(dirty[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transpose_b": False}, "expected transpose_b=True"),
        ({"bits": 3}, "expected bits 4 or 8, got 3"),
        ({"group_size": 16}, "expected group_size 32, 64 or 128, got 16"),
        ({"group_size": 128}, "expected scales of shape"),
        ({"bits": 8}, "expected b of shape"),
        ({"a": mx.zeros((2, 128))}, "expected a in float16 or bfloat16, got float32"),
        ({"a": mx.zeros((2, 100), mx.bfloat16)}, "positive multiple of group_size"),
        ({"a": mx.zeros((2, 192), mx.bfloat16)}, "expected b of shape"),
        ({"a": mx.array(1.0, mx.bfloat16)}, "at least one dimension"),
        ({"b": mx.zeros((64, 16), mx.int32)}, "expected b in uint32, got int32"),
        ({"b": mx.zeros((64,), mx.uint32)}, "expected b with 2 dimensions"),
        ({"scales": mx.zeros((64, 2))}, "expected scales in float16 or bfloat16, got float32"),
        ({"scales": mx.zeros((64, 3), mx.bfloat16)}, "expected scales of shape"),
        ({"biases": mx.zeros((64, 3), mx.bfloat16)}, "expected biases of shape"),
        ({"biases": mx.zeros((64, 2), mx.float16)}, "expected biases in the dtype of scales"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_errors_name_the_argument(changes, message):
    scales, biases, group_size, bits, a, b = problem(2, 128, 64, 4, 64, mx.bfloat16)
    arguments = {
        "scales": scales,
        "biases": biases,
        "group_size": group_size,
        "bits": bits,
        "a": a,
        "b": b,
    }
    with pytest.raises(ValueError, match=rf"\[quantized_matmul\] .*{message}"):
        quantized_matmul(**{**arguments, **changes})


def test_unknown_instruction_set(on_cpu, monkeypatch):
    args = problem(1, 128, 64, 4, 64, mx.bfloat16)
    monkeypatch.setenv("TINY_LLM_CPU_ISA", "sse9")
    with pytest.raises(ValueError, match='TINY_LLM_CPU_ISA must be .*, got "sse9"'):
        mx.eval(quantized_matmul(*args))
