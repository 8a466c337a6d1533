"""Week 4, day 2: the product with quantized weights, factored and in vectors."""

import mlx.core as mx
import pytest

from tests.ops.quantized_products import (
    HALVES,
    assert_exact_but_for_rounding,
    evaluated,
    problem,
)
from tests.support import assert_close
from tests.week_4.steps import WITH_VECTORS, use_product

SHAPES = [(1, 128, 64), (2, 384, 33), (3, 1024, 130), (33, 640, 7)]  # M, I, O


@pytest.fixture
def factored(monkeypatch, on_cpu) -> str:
    """Products go through task 1's kernel; gives what fixed point must not be allowed for."""
    monkeypatch.setenv("TINY_LLM_PRODUCT", "factored")
    return "portable"


@pytest.fixture(params=WITH_VECTORS or [None])
def vectors(request, monkeypatch, on_cpu) -> str:
    """Products go through task 2's kernel, of each instruction set that this machine has."""
    use_product("vectors", request.param, monkeypatch)
    return "portable"


def rows_alone_and_together(bits: int, group_size: int):
    """The product of 33 rows at once, and of each alone, which must have the same bits."""
    scales, biases, *_, a, b = problem(33, 384, 70, bits, group_size, mx.bfloat16)
    together = evaluated(scales, biases, group_size, bits, a, b)
    alone = [evaluated(scales, biases, group_size, bits, row[None], b) for row in a]
    assert_close(together, mx.concatenate(alone), "each row alone", ulps=0)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 128])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_task_1_is_exact_but_for_rounding(factored, bits, group_size, half, shape):
    assert_exact_but_for_rounding(factored, problem(*shape, bits, group_size, half))


@pytest.mark.parametrize("bits", [4, 8])
def test_task_1_a_row_has_the_same_bits_alone_and_together(factored, bits):
    rows_alone_and_together(bits, 64)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_task_2_is_exact_but_for_rounding(vectors, bits, group_size, half, shape):
    assert_exact_but_for_rounding(vectors, problem(*shape, bits, group_size, half))


@pytest.mark.parametrize("bits", [4, 8])
def test_task_2_a_row_has_the_same_bits_alone_and_together(vectors, bits):
    rows_alone_and_together(bits, 128)


def test_task_2_each_weight_meets_its_activation(vectors):
    """One activation is 1 and the others 0: the product is a column of the weights."""
    scales, biases, group_size, bits, _, b = problem(1, 256, 16, 4, 128, mx.bfloat16)
    plain = mx.dequantize(b, scales.astype(mx.float32), biases.astype(mx.float32), 128, 4)
    actual = evaluated(scales, biases, group_size, bits, mx.eye(256, dtype=mx.bfloat16), b)
    assert_close(actual, plain.T.astype(mx.bfloat16), "columns of the weights", ulps=4)


def test_task_2_instruction_sets_have_a_kernel_of_their_own(vectors, monkeypatch):
    scales, biases, group_size, bits, a, b = problem(2, 256, 40, 4, 128, mx.bfloat16)
    monkeypatch.setenv("TINY_LLM_CPU_ISA", "portable")
    with pytest.raises(ValueError, match="the instruction set is portable, which has none"):
        evaluated(scales, biases, group_size, bits, a, b)
    monkeypatch.setenv("TINY_LLM_PRODUCT", "fast")
    with pytest.raises(ValueError, match='"fast"; it may be loops, factored, vectors, '):
        evaluated(scales, biases, group_size, bits, a, b)
