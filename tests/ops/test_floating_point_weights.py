"""Floating-point 4-bit weights, as in mxfp4, in all operations with weights."""

import mlx.core as mx
import numpy as np
import pytest

from tests.ops.quantized_matmul_problems import (
    HALVES,
    assert_exact_but_for_rounding,
    dequantize,
    evaluated,
    problem_in_floating_point,
)
from tests.support import as_numpy, assert_same_bits, random
from tiny_llm import kernels
from tiny_llm.kernels.prepack import prepack_weight


@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize(("M", "O"), [(1, 64), (2, 70), (3, 1), (17, 130)])
def test_matmul_is_exact_up_to_rounding(instruction_set, half, group_size, M, O):
    arguments = problem_in_floating_point(M, 384, O, group_size, half)
    assert_exact_but_for_rounding(instruction_set, arguments)


def test_values_equal_mxfp4(on_cpu):
    """With power-of-two scales, dequantized values equal those of MLX's mxfp4."""
    packed, exponents = mx.quantize(random(16, 64), group_size=32, bits=4, mode="mxfp4")
    expected = mx.dequantize(packed, exponents, group_size=32, bits=4, mode="mxfp4")
    scales = mx.array(2.0 ** (np.array(exponents).astype(np.float64) - 127)).astype(mx.bfloat16)
    table = kernels.quantized_embedding(mx.arange(16), scales, None, 32, 4, packed)
    assert_same_bits(table, expected.astype(mx.bfloat16), "table rows")
    np.testing.assert_array_equal(dequantize(scales, None, 32, 4, packed), as_numpy(expected))


def test_prepacked_weights_are_bitwise_equal_in_all_operations(instruction_set):
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


def test_embedding_rows_equal_the_table(on_cpu):
    scales, _, group_size, bits, _, b = problem_in_floating_point(1, 128, 20, 32, mx.float16)
    ids = mx.array([3, -1, 19, 3])
    rows = kernels.quantized_embedding(ids, scales, None, group_size, bits, b)
    expected = (
        dequantize(scales, None, group_size, bits, b)[np.array(ids)] + 0.0
    )  # + 0.0 replaces −0 by 0, because the comparison is bitwise
    assert_same_bits(rows, mx.array(expected.astype(np.float32)).astype(mx.float16), "rows")
