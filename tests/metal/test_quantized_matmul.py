"""quantized_matmul's Metal kernels, compared with exact arithmetic."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import random
from tiny_llm import kernels

from .matmuls import TILES, VARIANTS, assert_matmul_close, exact_quantized, multiply
from .support import DTYPE_NAMES, ORDERS, as_bound

HALVES = [mx.bfloat16, mx.float16]
FORMATS = [(bits, group_size) for bits in (4, 8) for group_size in (32, 64, 128)]

# (rows, outputs, inputs). 33, 37 and 65 are not multiples of the tile and simdgroup sizes. With
# 384 or 640 inputs, kernels that read blocks of 512 have a short last block.
SHAPES = [(1, 1, 128), (3, 37, 384), (33, 65, 640)]


def problem(M, O, I, bits, group_size, dtype, scales_dtype=None):
    a = random(M, I, dtype=dtype)
    weights = random(O, I, dtype=scales_dtype or dtype)
    b, scales, biases = mx.quantize(weights, group_size=group_size, bits=bits)
    return scales, biases, a, b


def launch_of(M, O, I, bits, group_size, dtype, **how):
    return kernels.extension().metal.quantized_matmul_launch(
        M, O, I, group_size, bits, DTYPE_NAMES[dtype], **how
    )


def product(arguments, launch, **how):
    """Runs the launch on (scales, biases, a, b) and returns the M×O output."""
    M, O = arguments[2].shape[0], arguments[3].shape[0]
    dtype = DTYPE_NAMES[arguments[2].dtype]
    return multiply(launch, [as_bound(x) for x in arguments], M, O, dtype, **how)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize(("bits", "group_size"), FORMATS)
def test_is_exact_up_to_rounding(variant, half, bits, group_size):
    for shape in SHAPES:
        arguments = problem(*shape, bits, group_size, half)
        launch = launch_of(*shape, bits, group_size, half, variant=variant)
        actual = product(arguments, launch, order=("random", 3))
        assert_matmul_close(
            actual, *exact_quantized(*arguments, group_size, bits), shape[2], f"{shape}"
        )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("bits", [4, 8])
def test_bitwise_equal_for_any_lane_order(variant, bits):
    shape = (9, 70, 576)
    arguments = problem(*shape, bits, 64, mx.bfloat16)
    launch = launch_of(*shape, bits, 64, mx.bfloat16, variant=variant)
    first, *others = [product(arguments, launch, order=order) for order in ORDERS]
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint8), other.view(np.uint8))


@pytest.mark.parametrize("mode", ["asan", "race"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("bits", "group_size", "half"),
    [(4, 32, mx.bfloat16), (8, 128, mx.float16)],
    ids=["4 bits", "8 bits"],
)
def test_no_memory_fault_or_race(mode, variant, bits, group_size, half):
    shape = (5, 35, 640)
    arguments = problem(*shape, bits, group_size, half)
    launch = launch_of(*shape, bits, group_size, half, variant=variant)
    actual = product(arguments, launch, mode=mode)
    assert_matmul_close(actual, *exact_quantized(*arguments, group_size, bits), shape[2], mode)


@pytest.mark.parametrize(("half", "scales_dtype"), [HALVES, HALVES[::-1]], ids=["bf16", "f16"])
@pytest.mark.parametrize(("bits", "group_size"), FORMATS)
def test_scales_of_a_different_dtype(half, scales_dtype, bits, group_size):
    shape = (3, 37, 256)
    arguments = problem(*shape, bits, group_size, half, scales_dtype)
    how = {"scales_dtype": DTYPE_NAMES[scales_dtype]}
    launch = launch_of(*shape, bits, group_size, half, **how)
    assert launch.kernel.startswith("quantized_matmul_readable_")
    actual = product(arguments, launch)
    assert_matmul_close(
        actual, *exact_quantized(*arguments, group_size, bits), shape[2], launch.kernel
    )
    with pytest.raises(ValueError, match="expected scales in the dtype of a"):
        launch_of(*shape, bits, group_size, half, variant="matvec", **how)


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_are_batch_invariant(bits):
    O, I = 67, 1056
    arguments = scales, biases, a, b = problem(70, O, I, bits, 32, mx.bfloat16)

    def rows(M, variant=None):
        launch = launch_of(M, O, I, bits, 32, mx.bfloat16, variant=variant)
        return product((scales, biases, a[:M], b), launch).view(np.uint8)

    few = [rows(M) for M in range(1, 9)]
    for result in few:
        np.testing.assert_array_equal(result, few[-1][: len(result)], "in a small batch")
    many = product(arguments, launch_of(70, O, I, bits, 32, mx.bfloat16))
    for M in (9, 16, 33, 64):
        np.testing.assert_array_equal(rows(M), many.view(np.uint8)[:M], "in a large batch")
    for variant in TILES:
        np.testing.assert_array_equal(rows(70, variant), many.view(np.uint8), variant)


@pytest.mark.parametrize("variant", ["readable", "matvec"])
def test_gpu_with_fewer_threads_per_threadgroup(variant):
    shape = (5, 35, 128)
    arguments = problem(*shape, 4, 64, mx.float16)
    launches = [
        launch_of(*shape, 4, 64, mx.float16, variant=variant, max_threads=max_threads)
        for max_threads in (1024, 32)
    ]
    assert launches[0].threads != launches[1].threads
    first, second = (product(arguments, launch) for launch in launches)
    np.testing.assert_array_equal(first.view(np.uint8), second.view(np.uint8))


@pytest.mark.parametrize(
    ("shape", "kernel"),
    [
        ((1, 3072, 1024), "matvec1"),
        ((2, 3072, 1024), "matvec2"),
        ((8, 151936, 1024), "matvec4"),
        # 32 tiles do not fill the GPU, so the sum over I is split.
        ((9, 1024, 1024), "tile32_split_k"),
        ((9, 1024, 512), "tile32"),  # I = 512 is too short to split
        ((16, 151936, 1024), "tile32"),  # 16 rows fill only a quarter of a tile of 64 rows
        ((128, 1024, 1024), "tile32"),
        ((512, 3072, 1024), "tile64"),
    ],
)
def test_kernel_selection(shape, kernel):
    launch = launch_of(*shape, 4, 128, mx.bfloat16)
    assert launch.kernel == f"quantized_matmul_{kernel}_bfloat16_b4_g128"


def test_unknown_variant():
    with pytest.raises(ValueError, match="expected variant readable, .* got fastest"):
        launch_of(1, 1, 128, 4, 128, mx.bfloat16, variant="fastest")
