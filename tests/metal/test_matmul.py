"""matmul's Metal kernels on the emulator, compared with exact arithmetic."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import DTYPES, as_numpy, random
from tiny_llm import kernels

from .matmuls import TILES, VARIANTS, assert_matmul_close, multiply
from .support import DTYPE_NAMES, ORDERS, as_bound

# Rows M, outputs O, inputs I, with matrix rows that are multiples of 16 bytes and rows that are
# not. tests/metal/test_quantized_matmul.py covers other sizes.
SHAPES = [(1, 1, 8), (2, 5, 3), (3, 37, 264), (33, 65, 640), (13, 34, 519)]


def exact(a, b):
    """Matmul in float64, and the summed magnitudes of its terms."""
    a, b = as_numpy(a).astype(np.float64), as_numpy(b).astype(np.float64)
    return a @ b.T, np.abs(a) @ np.abs(b).T


def launch_of(a, b, **how):
    """Launch for rows of a and b, possibly slices of longer rows."""
    (M, I), O = a.shape, b.shape[0]
    how = {"a_stride": I, "b_stride": I, **how}
    return kernels.extension().metal.matmul_launch(M, O, I, DTYPE_NAMES[a.dtype], **how)


def product(a, b, launch, **how):
    M, O = a.shape[0], b.shape[0]
    return multiply(launch, [as_bound(a), as_bound(b)], M, O, DTYPE_NAMES[a.dtype], **how)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_is_exact_up_to_rounding(variant, dtype, shape):
    M, O, I = shape
    a, b = random(M, I, dtype=dtype), random(O, I, dtype=dtype)
    launch = launch_of(a, b, variant=variant)
    assert ("unaligned" in launch.kernel) == (variant != "readable" and I % 8 != 0)
    actual = product(a, b, launch, order=("random", 3))
    assert_matmul_close(actual, *exact(a, b), I, launch.kernel)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("I", [576, 515])
def test_bitwise_equal_for_any_lane_order(variant, I):
    a, b = random(9, I, dtype=mx.bfloat16), random(70, I, dtype=mx.bfloat16)
    launch = launch_of(a, b, variant=variant)
    first, *others = [product(a, b, launch, order=order) for order in ORDERS]
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint8), other.view(np.uint8))


@pytest.mark.parametrize("mode", ["asan", "race"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("I", "dtype"), [(640, mx.bfloat16), (515, mx.float32)], ids=str)
def test_no_memory_fault_or_race(mode, variant, I, dtype):
    a, b = random(5, I, dtype=dtype), random(35, I, dtype=dtype)
    actual = product(a, b, launch_of(a, b, variant=variant), mode=mode)
    assert_matmul_close(actual, *exact(a, b), I, mode)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("aligned", [True, False])
def test_strided_rows(variant, aligned):
    """Each row is a prefix of a longer row in the arrays passed to the kernel."""
    a, b = random(5, 80, dtype=mx.float16), random(35, 96, dtype=mx.float16)
    rows, weights = a[:, :64], b[:, :64]
    launch = launch_of(rows, weights, a_stride=80, b_stride=96, aligned=aligned, variant=variant)
    assert ("unaligned" in launch.kernel) == (variant != "readable" and not aligned)
    assert_matmul_close(product(a, b, launch), *exact(rows, weights), 64, launch.kernel)


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
def test_rows_are_batch_invariant(dtype):
    O, I = 67, 1056
    a, b = random(70, I, dtype=dtype), random(O, I, dtype=dtype)

    def rows(M, **how):
        return product(a[:M], b, launch_of(a[:M], b, **how)).view(np.uint8)

    few = [rows(M) for M in range(1, 9)]
    for result in few:
        np.testing.assert_array_equal(result, few[-1][: len(result)], "in a small batch")
    many = rows(70)
    for M in (9, 16, 33, 64):
        np.testing.assert_array_equal(rows(M), many[:M], "in a large batch")
    for variant in TILES:
        np.testing.assert_array_equal(rows(70, variant=variant), many, variant)
    np.testing.assert_array_equal(rows(3, aligned=False), few[2], "read element by element")
    np.testing.assert_array_equal(rows(70, aligned=False), many, "read element by element")


def test_empty_sum_is_zero():
    a, b = mx.zeros((3, 0)), mx.zeros((5, 0))
    for variant in VARIANTS:
        assert not product(a, b, launch_of(a, b, variant=variant)).any()
