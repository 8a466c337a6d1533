"""Week 4, day 4: panels of weights for many rows."""

import mlx.core as mx
import pytest

from tests.ops.quantized_matmul_problems import (
    HALVES,
    assert_exact_but_for_rounding,
    assert_rows_are_batch_invariant,
    evaluated,
    problem,
)
from tests.support import assert_close
from tests.week_4.kernel_selection import kernel_fixture, matmul_cases, prepacked_args

# (rows, inputs, outputs), with full and partial row tiles on every instruction set.
SHAPES = [(1, 128, 32), (3, 128, 64), (8, 384, 32), (13, 256, 96)]


panels = kernel_fixture("TINY_LLM_MATMUL", "panels")
pairs = kernel_fixture("TINY_LLM_MATMUL", "pairs")


def assert_each_weight_multiplies_its_activation():
    """Asserts that a one-hot activation selects a column of the weights."""
    args = problem(1, 256, 32, 8, 128, mx.bfloat16)
    scales, biases, *_, b = args
    plain = mx.dequantize(b, scales.astype(mx.float32), biases.astype(mx.float32), 128, 8)
    *weights, _, words = prepacked_args(*args)
    actual = evaluated(*weights, mx.eye(256, dtype=mx.bfloat16), words)
    assert_close(actual, plain.T.astype(mx.bfloat16), "columns of the weights", ulps=4)


@matmul_cases(SHAPES)
def test_task_1_is_exact_up_to_rounding(panels, bits, group_size, half, shape):
    args = problem(*shape, bits, group_size, half)
    assert_exact_but_for_rounding("portable", args, prepacked_args(*args))


def test_task_1_each_weight_multiplies_its_activation(panels):
    assert_each_weight_multiplies_its_activation()


@pytest.mark.parametrize("bits", [4, 8])
def test_task_1_rows_are_batch_invariant(panels, bits):
    args = prepacked_args(*problem(17, 384, 64, bits, 64, mx.bfloat16))
    assert_rows_are_batch_invariant(*args)


@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
def test_task_1_is_bitwise_equal_to_day_3_kernel(panels, monkeypatch, half):
    args = prepacked_args(*problem(13, 256, 64, 4, 128, half))
    actual = evaluated(*args)
    monkeypatch.setenv("TINY_LLM_MATMUL", "prepacked")
    assert_close(actual, evaluated(*args), "kernel for a single row", ulps=0)


@matmul_cases(SHAPES)
def test_task_2_is_exact_up_to_rounding(pairs, bits, group_size, half, shape):
    args = problem(*shape, bits, group_size, half)
    assert_exact_but_for_rounding("portable", args, prepacked_args(*args))


def test_task_2_each_weight_multiplies_its_activation(pairs):
    assert_each_weight_multiplies_its_activation()


@pytest.mark.parametrize("bits", [4, 8])
def test_task_2_rows_are_batch_invariant(pairs, bits):
    args = prepacked_args(*problem(17, 384, 64, bits, 64, mx.bfloat16))
    assert_rows_are_batch_invariant(*args)
