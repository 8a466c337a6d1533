"""extend_rows: in-place growth of arrays."""

import os
import resource
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest

from tiny_llm.kernels import extension
from tiny_llm.kernels.heap import extend_rows, trim_heap

DTYPES = (mx.bfloat16, mx.float32, mx.int8)
# Sizes below a memory page, and sizes that malloc takes from the heap or maps. Some are multiples
# of the page size.
SHAPES = ((1, 3), (5, 1, 7), (3, 40_000), (1, 524_288), (17, 100_003))


def random_array(shape, dtype):
    x = mx.random.randint(-100, 100, shape).astype(dtype)
    mx.eval(x)
    return x


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_kept_and_new_rows_are_zero(shape, dtype):
    x = random_array(shape, dtype)
    expected = np.array(x.astype(mx.float32))
    for num_rows in (1, 4, 0, 9):
        x = extend_rows(x, num_rows)
        expected = np.pad(expected, [(0, num_rows), *[(0, 0)] * (x.ndim - 1)])
        np.testing.assert_array_equal(np.array(x.astype(mx.float32)), expected)
        x[-1] = 7  # the next extension must preserve values written to new rows
        mx.eval(x)
        expected[-1] = 7
    assert x.dtype == dtype


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shared_arrays_are_copied(shape):
    x = extend_rows(random_array(shape, mx.int8), 1)
    view = x[0]
    mx.eval(view)
    expected = np.array(view)
    extended = extend_rows(x, 2)
    np.testing.assert_array_equal(np.array(view), expected)
    np.testing.assert_array_equal(np.array(extended[0]), expected)


def test_empty_array():
    x = extend_rows(mx.zeros((0, 4), mx.bfloat16), 3)
    assert x.shape == (3, 4)
    assert not mx.any(x).item()


needs_page_moves = pytest.mark.skipif(
    sys.platform != "linux" or mx.default_device() == mx.gpu,
    reason="memory pages are moved on Linux",
)


@needs_page_moves
@pytest.mark.parametrize("rows", [0, 3])
def test_lazy_array_and_result_are_evaluated(rows):
    x = extend_rows(2 * mx.ones((rows, 1024)), 2)
    assert extension().extend_rows(x, 1), (
        "expected an evaluated result, which can be extended in place"
    )
    assert x.sum().item() == rows * 2048


@needs_page_moves
def test_first_rows_start_at_a_memory_page():
    for num_rows in (1, 300):
        x = extend_rows(mx.zeros((0, 16, 64)), num_rows)
        for _ in range(2):
            address, _ = np.array(x, copy=False).__array_interface__["data"]
            assert address % resource.getpagesize() == 0
            x = extend_rows(x, 100)


@needs_page_moves
@pytest.mark.parametrize("heap_bytes", [0, 100 << 20], ids=["mapped", "heap"])
def test_memory_pages_are_moved(heap_bytes):
    # In case "heap", the freed blocks leave a hole in the heap that is large enough for the array,
    # so glibc does not map new memory for it.
    x = random_array((8, 2**20), mx.float32)
    blocks = [mx.zeros(1 << 20, mx.int8) for _ in range(heap_bytes >> 20)]
    mx.eval(blocks)
    del blocks[:-1]
    trim_heap()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    active = mx.get_active_memory()
    x = extend_rows(x, 8)
    num_faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert num_faults < 4000, "expected moved pages: a copy of 32 MB causes 8,000 page faults"
    assert 0 <= mx.get_active_memory() - active - 8 * 2**22 < 2**13


# Runs in a subprocess, because MLX counts the failed allocation as active memory for good.
FAILED_ALLOCATION = """
import mlx.core as mx
from tiny_llm.kernels.heap import extend_rows

x = mx.zeros((1, 2**20), mx.int8)
try:
    extend_rows(x, 2**31 - 2)
except RuntimeError as error:
    print(error)
print(x.shape)
"""


@needs_page_moves
def test_failed_allocation_is_an_error():
    # Makes AddressSanitizer's malloc return null on failure instead of aborting.
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}
    command = [sys.executable, "-c", FAILED_ALLOCATION]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    error, shape = result.stdout.splitlines()
    assert error == f"Cannot allocate {(2**31 - 1) * 2**20} bytes."
    assert shape == "(1, 1048576)"
