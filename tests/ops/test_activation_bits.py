"""Matmuls with 8-bit activations, compared with MLX and across ISAs."""

import mlx.core as mx
import numpy as np
import pytest

from tests.ops.quantized_matmul_problems import HALVES, exact, problem
from tests.support import EPSILON, as_numpy, assert_same_bits, random
from tiny_llm import kernels
from tiny_llm.kernels.prepack import prepack_weight

SHAPES = [(1, 256, 70), (2, 128, 1), (5, 640, 64), (7, 128, 65), (13, 384, 130), (40, 256, 67)]


def rounded(a, group_size):
    """Reference: activations rounded to 8 bits per group, in float32."""
    groups = a.astype(mx.float32).reshape(*a.shape[:-1], -1, group_size)
    largest = mx.maximum(mx.abs(groups).max(-1, keepdims=True), 2.0**-97)
    return (mx.round(groups * (127 / largest)) * (largest / 127)).reshape(a.shape)


def multiply(scales, biases, group_size, bits, a, b):
    [output] = kernels.multi_quantized_matmul(
        [scales], [biases], group_size, bits, a, [b], activation_bits=8
    )
    mx.eval(output)
    return output


@pytest.mark.parametrize("bits", [4, 8, "e2m1"])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
def test_matches_rounded_activations(prepacked_isa, half, group_size, bits):
    for M, I, O in SHAPES:
        arguments = problem(M, I, O, bits, group_size, half)
        scales, biases, _, b_bits, a, b = arguments
        expected, magnitude = exact(scales, biases, group_size, b_bits, rounded(a, group_size), b)
        error = np.abs(as_numpy(multiply(*arguments)) - expected)
        # One rounding to the output dtype, and a few float32 operations per group.
        bound = EPSILON[half] / 2 * np.abs(expected) + 2.0**-18 * magnitude
        assert (error <= bound).all(), (
            f"{M}×{I}×{O}: the error exceeds its bound by up to {(error - bound).max()}"
        )


@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("bits", [4, 8])
def test_same_bits_on_every_instruction_set_batched_and_prepacked(monkeypatch, bits, half):
    scales, biases, group_size, _, a, b = problem(33, 256, 128, bits, 64, half)
    expected = None
    for name in kernels.extension().instruction_sets():
        monkeypatch.setenv("TINY_LLM_CPU_ISA", name)
        rows = kernels.prepack_rows()
        if rows == 0:
            continue
        output = multiply(scales, biases, group_size, bits, a, b)
        expected = output if expected is None else expected
        assert_same_bits(output, expected, name)
        packed = (prepack_weight(array, rows) for array in (scales, biases, b))
        scales_packed, biases_packed, b_packed = packed
        arguments = scales_packed, biases_packed, group_size, bits
        assert_same_bits(multiply(*arguments, a, b_packed), expected, f"{name}, prepacked")
        for row in (0, 17, 32):
            alone = multiply(*arguments, a[row : row + 1], b_packed)
            assert_same_bits(alone, expected[row : row + 1], f"{name}, row {row} alone")


@pytest.mark.parametrize("bits", [4, 8])
def test_each_matrix_and_expert_has_the_bits_of_a_single_matmul(prepacked_isa, bits):
    b, scales, biases = mx.quantize(random(3, 70, 256, dtype=mx.bfloat16), 64, bits)
    a, experts = random(9, 256, dtype=mx.bfloat16), mx.random.randint(0, 3, (9, 1))
    single = [multiply(scales[x], biases[x], 64, bits, a, b[x]) for x in range(3)]
    options = {"activation_bits": 8}
    outputs = kernels.multi_quantized_matmul(
        list(scales), list(biases), 64, bits, a, list(b), **options
    )
    grouped = kernels.grouped_quantized_matmul(scales, biases, 64, bits, a, b, experts, **options)
    mx.eval(outputs, grouped)
    for output, expected in zip(outputs, single, strict=True):
        assert_same_bits(output, expected, "several matrices")
    for row, [expert] in enumerate(experts.tolist()):
        assert_same_bits(grouped[row, 0], single[expert][row], f"row {row}")


def test_portable_kernels_are_rejected(monkeypatch):
    monkeypatch.setenv("TINY_LLM_CPU_ISA", "portable")
    with pytest.raises(ValueError, match="the selected kernels do not round activations"):
        multiply(*problem(1, 128, 64, 4, 64, mx.bfloat16))
