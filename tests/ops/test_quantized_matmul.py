"""`quantized_matmul`: outliers, fixed-point kernels, floating-point weights as in mxfp4."""

import mlx.core as mx
import numpy as np
import pytest

from tests.ops.quantized_matmul_problems import (
    HALVES,
    assert_exact_but_for_rounding,
    dequantize,
    evaluated,
    fixed_point_isas,
    problem,
    problem_in_floating_point,
)
from tests.support import assert_same_bits
from tiny_llm import kernels
from tiny_llm.kernels.prepack import prepack_weight


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


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_many_long_rows_are_bitwise_equal_to_few(instruction_set, dtype):
    """With AMX, the activations exceed the cache and are processed in parts of 128 (64) rows."""
    scales, biases, group_size, bits, a, b = problem(270, 4096, 70, 4, 128, dtype)
    together = evaluated(scales, biases, group_size, bits, a, b)
    for first in range(0, 270, 60):
        some = evaluated(scales, biases, group_size, bits, a[first : first + 60], b)
        assert_same_bits(together[first : first + 60], some, f"rows from {first}")


@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("bits", [4, 8, "e2m1"])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("M", [1, 2, 3, 16, 33])
def test_fixed_point_kernels_are_bitwise_equal(monkeypatch, half, bits, group_size, M):
    """Covers the instruction sets whose kernels sum the same integers."""
    arguments = problem(M, 384, 70, bits, group_size, half)
    isas = fixed_point_isas(arguments[3], half)
    sets = [name for name in isas if name in kernels.extension().instruction_sets()]
    if len(sets) < 2:
        pytest.skip(f"needs two of {', '.join(isas)}")
    products = []
    for name in sets:
        monkeypatch.setenv("TINY_LLM_CPU_ISA", name)
        products.append(evaluated(*arguments))
        assert_same_bits(products[-1], products[0], name)


@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize(("M", "O"), [(1, 64), (2, 70), (3, 1), (17, 130)])
def test_floating_point_weights_are_exact_up_to_rounding(instruction_set, half, group_size, M, O):
    arguments = problem_in_floating_point(M, 384, O, group_size, half)
    assert_exact_but_for_rounding(instruction_set, arguments)


def test_floating_point_weights_in_all_operations(instruction_set):
    scales, _, group_size, bits, a, b = problem_in_floating_point(9, 256, 128, 64, mx.bfloat16)
    product = evaluated(scales, None, group_size, bits, a, b)
    two = [scales, scales], [None, None], group_size, bits, a, [b, b]
    for each in kernels.multi_quantized_matmul(*two):
        assert_same_bits(each, product, "multi_quantized_matmul")
    stacks = scales.reshape(2, 64, -1), None, group_size, bits, a, b.reshape(2, 64, -1)
    grouped = kernels.grouped_quantized_matmul(*stacks, mx.array([[0, 1]] * 9))
    assert_same_bits(grouped.reshape(9, 128), product, "grouped_quantized_matmul")
    if rows := kernels.prepack_rows():
        fast = evaluated(
            prepack_weight(scales, rows), None, group_size, bits, a, prepack_weight(b, rows)
        )
        assert_same_bits(fast, product, "interleaved")


def test_embedding_of_floating_point_weights(on_cpu):
    scales, _, group_size, bits, _, b = problem_in_floating_point(1, 128, 20, 32, mx.float16)
    ids = mx.array([3, -1, 19, 3])
    rows = kernels.quantized_embedding(ids, scales, None, group_size, bits, b)
    expected = (
        dequantize(scales, None, group_size, bits, b)[np.array(ids)] + 0.0
    )  # + 0.0 replaces −0 by 0, because the comparison is bitwise
    assert_same_bits(rows, mx.array(expected.astype(np.float32)).astype(mx.float16), "rows")
