"""Metal kernels of rms_norm and add_rms_norm, compared with the CPU."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import DTYPES, assert_close, random
from tiny_llm import kernels

from .support import DTYPE_NAMES, ORDERS, as_array, as_bound, empty, fitting_launch, run

SOURCE = "rms_norm/rms_norm.metal"
EPS = 1e-6


def rms_norm(x, weight, D=None, max_threads=1024, **how):
    """Normalizes the first D elements (default: all) of each row of x."""
    (M, stride), dtype = x.shape, DTYPE_NAMES[x.dtype]
    D = stride if D is None else D
    make = kernels.extension().metal.rms_norm_launch
    launch = fitting_launch(
        SOURCE, lambda most: make(M, D, EPS, stride, dtype, max_threads=min(most, max_threads))
    )
    out = empty((M, D), dtype)
    run(SOURCE, launch, [as_bound(x), as_bound(weight), out], **how)
    return as_array(out)


def add_rms_norm(x, y, weight, **how):
    (M, D), dtype = x.shape, DTYPE_NAMES[x.dtype]
    launch = kernels.extension().metal.add_rms_norm_launch(M, D, EPS, D, D, dtype)
    total, out = empty((M, D), dtype), empty((M, D), dtype)
    arrays = [as_bound(x), as_bound(y), as_bound(weight), total, out]
    run(SOURCE, launch, arrays, outputs=2, **how)
    return as_array(total), as_array(out)


def expected(x, weight):
    return kernels.rms_norm(x, weight, EPS, stream=mx.cpu)


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
@pytest.mark.parametrize("D", [1, 33, 128, 1023, 2560, 9001])
def test_rms_norm(dtype, D):
    x, weight = random(3, D, dtype=dtype, scale=3), random(D, dtype=dtype)
    actual = rms_norm(x, weight, order=("random", 1))
    assert_close(actual, expected(x, weight), f"rms_norm, D {D}")


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
@pytest.mark.parametrize("D", [7, 1024, 8200])
def test_add_rms_norm(dtype, D):
    x, y, weight = random(2, D, dtype=dtype), random(2, D, dtype=dtype), random(D, dtype=dtype)
    total, out = add_rms_norm(x, y, weight, order=("random", 2))
    reference_total, reference = kernels.add_rms_norm(x, y, weight, EPS, stream=mx.cpu)
    assert mx.array_equal(total, reference_total)
    assert_close(out, reference, f"add_rms_norm, D {D}")


def test_strided_rows_with_few_threads():
    x, weight = random(4, 300), random(200)
    reference = expected(x[:, :200], weight)
    for max_threads in (1024, 32, 33, 64):
        actual = rms_norm(x, weight, 200, max_threads)
        assert_close(actual, reference, f"{max_threads} threads")


def test_bitwise_equal_for_any_lane_order():
    x, weight = random(2, 1500, dtype=mx.bfloat16), random(1500, dtype=mx.bfloat16)
    first, *others = [rms_norm(x, weight, order=order) for order in ORDERS]
    assert all(mx.array_equal(first, other) for other in others)


@pytest.mark.parametrize("mode", ["asan", "race"])
@pytest.mark.parametrize("D", [100, 8300])
def test_no_memory_fault_or_race(mode, D):
    x, y, weight = random(2, D), random(2, D), random(D)
    assert_close(rms_norm(x, weight, mode=mode), expected(x, weight), mode)
    total, out = add_rms_norm(x, y, weight, mode=mode)
    np.testing.assert_array_equal(np.array(total), np.array(x + y))
    assert_close(out, expected(x + y, weight), mode)
