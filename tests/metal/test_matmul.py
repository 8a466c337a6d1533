"""Metal kernels of (quantized) matmuls, compared with exact arithmetic."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import DTYPES, random
from tiny_llm import kernels

from .matmuls import TILES, VARIANTS, Matmul
from .support import DTYPE_NAMES, ORDERS

HALVES = [mx.bfloat16, mx.float16]
FORMATS = [(bits, group_size) for bits in (4, 8) for group_size in (32, 64, 128)]

# Rows M, outputs O, inputs I. Dense rows are multiples of 16 bytes, or not. 33, 37 and 65 are not
# multiples of the tile and simdgroup sizes. With 384 or 640 inputs, kernels that read blocks of 512
# have a short last block.
DENSE_SHAPES = [(1, 1, 8), (2, 5, 3), (3, 37, 264), (33, 65, 640), (13, 34, 519)]
QUANTIZED_SHAPES = [(1, 1, 128), (3, 37, 384), (33, 65, 640)]


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
@pytest.mark.parametrize("shape", DENSE_SHAPES, ids=str)
def test_dense_is_exact_up_to_rounding(variant, dtype, shape):
    problem = Matmul.draw(shape, dtype)
    launch = problem.launch(variant=variant)
    assert ("unaligned" in launch.kernel) == (variant != "readable" and shape[2] % 8 != 0)
    problem.assert_close(problem.run(launch, order=("random", 3)), launch.kernel)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize(("bits", "group_size"), FORMATS)
def test_quantized_is_exact_up_to_rounding(variant, half, bits, group_size):
    for shape in QUANTIZED_SHAPES:
        problem = Matmul.draw(shape, half, bits, group_size)
        actual = problem.run(problem.launch(variant=variant), order=("random", 3))
        problem.assert_close(actual, f"{shape}")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("I", "bits"), [(576, 0), (515, 0), (576, 4), (576, 8)])
def test_bitwise_equal_for_any_lane_order(variant, I, bits):
    problem = Matmul.draw((9, 70, I), mx.bfloat16, bits)
    launch = problem.launch(variant=variant)
    first, *others = [problem.run(launch, order=order) for order in ORDERS]
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint8), other.view(np.uint8))


@pytest.mark.parametrize("mode", ["asan", "race"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("I", "dtype", "bits", "group_size"),
    [
        (640, mx.bfloat16, 0, 0),
        (515, mx.float32, 0, 0),
        (640, mx.bfloat16, 4, 32),
        (640, mx.float16, 8, 128),
    ],
    ids=str,
)
def test_no_memory_fault_or_race(mode, variant, I, dtype, bits, group_size):
    problem = Matmul.draw((5, 35, I), dtype, bits, group_size)
    problem.assert_close(problem.run(problem.launch(variant=variant), mode=mode), mode)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("aligned", [True, False])
def test_strided_rows(variant, aligned):
    """Each row is a prefix of a longer row in the arrays passed to the kernel."""
    a, b = random(5, 80, dtype=mx.float16), random(35, 96, dtype=mx.float16)
    problem = Matmul(5, 35, 64, mx.float16, (a, b))
    launch = problem.launch(a_stride=80, b_stride=96, aligned=aligned, variant=variant)
    assert ("unaligned" in launch.kernel) == (variant != "readable" and not aligned)
    problem.assert_close(problem.run(launch), launch.kernel)


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [*((dtype, 0) for dtype in DTYPES), (mx.bfloat16, 4), (mx.bfloat16, 8)],
    ids=str,
)
def test_rows_are_batch_invariant(dtype, bits):
    problem = Matmul.draw((70, 67, 1056), dtype, bits, 32)

    def rows(M, **how):
        part = problem.first_rows(M)
        return part.run(part.launch(**how)).view(np.uint8)

    few = [rows(M) for M in range(1, 9)]
    for result in few:
        np.testing.assert_array_equal(result, few[-1][: len(result)], "in a small batch")
    many = rows(70)
    for M in (9, 16, 33, 64):
        np.testing.assert_array_equal(rows(M), many[:M], "in a large batch")
    for variant in TILES:
        np.testing.assert_array_equal(rows(70, variant=variant), many, variant)
    if not bits:
        np.testing.assert_array_equal(rows(3, aligned=False), few[2], "read element by element")
        np.testing.assert_array_equal(rows(70, aligned=False), many, "read element by element")


def test_empty_sum_is_zero():
    problem = Matmul(3, 5, 0, mx.float32, (mx.zeros((3, 0)), mx.zeros((5, 0))))
    for variant in VARIANTS:
        assert not problem.run(problem.launch(variant=variant)).any()


@pytest.mark.parametrize(("half", "scales_dtype"), [HALVES, HALVES[::-1]], ids=["bf16", "f16"])
@pytest.mark.parametrize(("bits", "group_size"), FORMATS)
def test_scales_of_a_different_dtype(half, scales_dtype, bits, group_size):
    problem = Matmul.draw((3, 37, 256), half, bits, group_size, scales_dtype)
    how = {"scales_dtype": DTYPE_NAMES[scales_dtype]}
    launch = problem.launch(**how)
    assert launch.kernel.startswith("quantized_matmul_readable_")
    problem.assert_close(problem.run(launch), launch.kernel)
    with pytest.raises(ValueError, match="expected scales in the dtype of a"):
        problem.launch(variant="matvec", **how)


@pytest.mark.parametrize("variant", ["readable", "matvec"])
def test_gpu_with_fewer_threads_per_threadgroup(variant):
    problem = Matmul.draw((5, 35, 128), mx.float16, 4)
    launches = [problem.launch(variant=variant, max_threads=threads) for threads in (1024, 32)]
    assert launches[0].threads != launches[1].threads
    first, second = map(problem.run, launches)
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
    metal = kernels.extension().metal
    launch = metal.quantized_matmul_launch(*shape, 128, 4, "bfloat16")
    assert launch.kernel == f"quantized_matmul_{kernel}_bfloat16_b4_g128"


def test_unknown_variant():
    with pytest.raises(ValueError, match="expected variant readable, .* got fastest"):
        Matmul.draw((1, 1, 128), mx.bfloat16, 4).launch(variant="fastest")
