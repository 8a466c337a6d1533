"""`matmul` compared with exact arithmetic; batch invariance."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import EPSILON, as_numpy, assert_close, assert_equal, random
from tiny_llm import kernels
from tiny_llm.basics import linear
from tiny_llm.quantize import project

SHAPES = [  # rows M, inputs I, outputs O
    (1, 1, 1),
    (1, 128, 64),
    (2, 33, 5),
    (3, 384, 33),
    (5, 31, 67),
    (7, 257, 130),
    (16, 1024, 66),
    (67, 100, 129),
    (130, 64, 3),
]


def matmul(a: mx.array, b: mx.array) -> mx.array:
    result = kernels.matmul(a, b)
    mx.eval(result)
    return result


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_is_exact_up_to_rounding(instruction_set, dtype, shape):
    M, I, O = shape
    a, b = random(M, I, dtype=dtype), random(O, I, dtype=dtype)
    a64, b64 = as_numpy(a).astype(np.float64), as_numpy(b).astype(np.float64)
    expected = a64 @ b64.T
    # One rounding to the output dtype, and I float32 additions with magnitudes summing to Σ |a·b|.
    sums = I * EPSILON[mx.float32] / 2 * (np.abs(a64) @ np.abs(b64).T)
    bound = EPSILON[dtype] / 2 * np.abs(expected) + sums + 2.0**-25
    worst = (np.abs(as_numpy(matmul(a, b)) - expected) / bound).max()
    assert worst <= 1.01, f"the error is {worst:.2f} × the bound of float32 sums and one rounding"


def test_equals_linear(instruction_set, dtype):
    a, b = random(5, 256, dtype=dtype), random(96, 256, dtype=dtype)
    with mx.stream(mx.cpu):
        expected = linear(a, b)
    # MLX and the kernel sum in float32, but in different orders. After rounding to 16 bits, results
    # differ by at most one ulp.
    ulps = 1 if dtype != mx.float32 else 8
    assert_close(matmul(a, b), expected, "matmul compared with MLX", ulps)


@pytest.mark.parametrize("M", [2, 5, 64, 131])
def test_outputs_do_not_depend_on_other_rows_of_b(instruction_set, dtype, M):
    a, b = random(M, 131, dtype=dtype), random(70, 131, dtype=dtype)
    together = as_numpy(matmul(a, b))
    for output in (0, 67, 69):
        alone = as_numpy(matmul(a, b[output : output + 1]))
        np.testing.assert_array_equal(alone[:, 0], together[:, output], "bitwise")


def test_empty_dimensions(instruction_set, dtype):
    assert matmul(mx.zeros((0, 8), dtype), mx.zeros((3, 8), dtype)).shape == (0, 3)
    assert matmul(mx.zeros((2, 8), dtype), mx.zeros((0, 8), dtype)).shape == (2, 0)
    empty_sums = matmul(mx.zeros((2, 0), dtype), mx.zeros((3, 0), dtype))
    np.testing.assert_array_equal(as_numpy(empty_sums), np.zeros((2, 3)))


def test_project_uses_matmul_for_half_precision(dtype):
    x, w = random(3, 64, dtype=dtype), random(33, 64, dtype=dtype)
    expected = linear(x, w) if dtype == mx.float32 else kernels.matmul(x, w)
    assert_close(project(x, w), expected, "project", ulps=0)
    assert_equal(project(x, w.astype(mx.float32)).dtype, mx.float32, "mixed dtypes to be promoted")
