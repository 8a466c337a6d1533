"""Week 4, day 2: quantized matmul, factored and vectorized."""

import mlx.core as mx
import pytest

from tests.metal.matmuls import assert_matmul_close, exact_quantized, multiply
from tests.metal.support import DTYPE_NAMES, NO_CLANG, as_bound, check_is_written, empty, library
from tests.ops.quantized_matmul_problems import (
    HALVES,
    assert_exact_but_for_rounding,
    assert_rows_are_batch_invariant,
    evaluated,
    problem,
)
from tests.support import assert_close
from tests.week_4.kernel_selection import kernel_fixture, matmul_cases
from tiny_llm import kernels
from tools.metal_emulator import has_clang

SHAPES = [(1, 128, 64), (2, 384, 33), (3, 1024, 130), (33, 640, 7)]  # rows, inputs, outputs


@pytest.fixture
def factored(monkeypatch, on_cpu) -> str:
    """Selects task 1's kernel; returns "portable": it has no fixed-point error."""
    monkeypatch.setenv("TINY_LLM_MATMUL", "factored")
    return "portable"


vectors = kernel_fixture("TINY_LLM_MATMUL", "vectors")


@matmul_cases(SHAPES)
def test_task_1_is_exact_up_to_rounding(factored, bits, group_size, half, shape):
    assert_exact_but_for_rounding(factored, problem(*shape, bits, group_size, half))


@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
def test_task_1_scales_of_a_different_dtype(factored, half):
    args = problem(2, 256, 64, 4, 128, half, scale_dtype=HALVES[half == mx.bfloat16])
    assert_exact_but_for_rounding(factored, args)


@pytest.mark.parametrize("bits", [4, 8])
def test_task_1_rows_are_batch_invariant(factored, bits):
    assert_rows_are_batch_invariant(*problem(33, 384, 70, bits, 64, mx.bfloat16))


@matmul_cases(SHAPES, group_sizes=(32, 64, 128))
def test_task_2_is_exact_up_to_rounding(vectors, bits, group_size, half, shape):
    assert_exact_but_for_rounding(vectors, problem(*shape, bits, group_size, half))


@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
def test_task_2_scales_of_a_different_dtype(vectors, half):
    args = problem(2, 256, 64, 4, 128, half, scale_dtype=HALVES[half == mx.bfloat16])
    assert_exact_but_for_rounding(vectors, args)


@pytest.mark.parametrize("bits", [4, 8])
def test_task_2_rows_are_batch_invariant(vectors, bits):
    assert_rows_are_batch_invariant(*problem(33, 384, 70, bits, 128, mx.bfloat16))


def test_task_2_each_weight_multiplies_its_activation(vectors):
    """With a one-hot activation, the result is a column of the weights."""
    scales, biases, group_size, bits, _, b = problem(1, 256, 16, 4, 128, mx.bfloat16)
    plain = mx.dequantize(b, scales.astype(mx.float32), biases.astype(mx.float32), 128, 4)
    actual = evaluated(scales, biases, group_size, bits, mx.eye(256, dtype=mx.bfloat16), b)
    assert_close(actual, plain.T.astype(mx.bfloat16), "columns of the weights", ulps=4)


def test_task_2_one_kernel_per_instruction_set(vectors, monkeypatch):
    scales, biases, group_size, bits, a, b = problem(2, 256, 40, 4, 128, mx.bfloat16)
    monkeypatch.setenv("TINY_LLM_CPU_ISA", "portable")
    with pytest.raises(ValueError, match="requires a vector instruction set, got portable"):
        evaluated(scales, biases, group_size, bits, a, b)
    monkeypatch.setenv("TINY_LLM_MATMUL", "fast")
    with pytest.raises(ValueError, match='must be loops, factored, vectors, .*, got "fast"'):
        evaluated(scales, biases, group_size, bits, a, b)


MATVEC = "quantized_matmul/quantized_matmul_matvec.metal"


def matvec(scales, biases, group_size, bits, a, b, mode="plain"):
    """Matmul with task 3's kernel, on the GPU or the emulator."""
    check_is_written(MATVEC)
    (M, I), O, dtype = a.shape, b.shape[0], DTYPE_NAMES[a.dtype]
    launch = kernels.extension().metal.quantized_matmul_launch(
        M, O, I, group_size, bits, dtype, variant="matvec"
    )
    inputs = [as_bound(x) for x in (scales, biases, a, b)]
    return multiply(launch, inputs, M, O, dtype, mode=mode, order=("random", 1))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("shape", "group_size"), [((1, 128, 5), 32), ((2, 640, 33), 128), ((7, 1024, 6), 64)], ids=str
)
def test_task_3_is_exact_up_to_rounding(bits, half, shape, group_size):
    scales, biases, *_, a, b = problem(*shape, bits, group_size, half)
    actual = matvec(scales, biases, group_size, bits, a, b)
    expected = exact_quantized(scales, biases, a, b, group_size, bits)
    assert_matmul_close(actual, *expected, shape[1], "quantized_matmul_matvec")


def test_task_3_no_access_out_of_bounds():
    scales, biases, *_, a, b = problem(3, 384, 5, 4, 64, mx.bfloat16)
    matvec(scales, biases, 64, 4, a, b, mode="asan")


def test_task_3_traffic_and_instruction_counts():
    check_is_written(MATVEC)
    if not has_clang():
        pytest.skip(NO_CLANG)
    M, I, O = 4, 4096, 16
    scales, biases, *_, a, b = problem(M, I, O, 4, 128, mx.bfloat16)
    metal = kernels.extension().metal
    launch = metal.quantized_matmul_launch(M, O, I, 128, 4, "bfloat16", variant="matvec")
    inputs = [as_bound(x) for x in (scales, biases, a, b)]
    arguments = [*inputs, empty((M, O), "bfloat16"), launch.params]
    sizes = {"grid": launch.groups, "threads": launch.threads}
    counts = library(MATVEC).launch(launch.kernel, arguments, **sizes, mode="count").counts
    read = counts.device_bytes_read_by_buffer[3]
    assert read == b.nbytes, f"expected each weight to be read once for four rows, got {read} bytes"
    assert counts.integer_divisions == 0, "expected no integer divisions"
    accesses, integers = (n / (O * I) for n in (counts.device_accesses, counts.integer_operations))
    assert accesses <= 0.7, (
        f"expected at most 0.7 memory accesses per weight, got {accesses:.2f}: are activations "
        "loaded four at a time, and weights 8 or 16 bytes at a time?"
    )
    assert integers <= 1.6, f"expected at most 1.6 integer operations a weight, got {integers:.2f}"
