"""`matmul` compared with exact arithmetic; batch invariance."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import (
    EPSILON,
    as_numpy,
    assert_close,
    assert_same_on_any_number_of_threads,
    random,
)
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


@pytest.mark.parametrize("M", [2, 3, 4, 5, 64, 65, 131])
def test_rows_are_batch_invariant(instruction_set, dtype, M):
    a, b = random(M, 131, dtype=dtype), random(70, 131, dtype=dtype)
    together = as_numpy(matmul(a, b))
    for row in {0, 1, M // 2, M - 1}:
        alone = as_numpy(matmul(a[row : row + 1], b))
        np.testing.assert_array_equal(alone[0], together[row], "bitwise")
    for output in (0, 67, 69):  # an output must not depend on the other rows of b
        alone = as_numpy(matmul(a, b[output : output + 1]))
        np.testing.assert_array_equal(alone[:, 0], together[:, output], "bitwise")


def test_bitwise_equal_for_any_thread_count():
    assert_same_on_any_number_of_threads(
        "import mlx.core as mx, numpy as np, tiny_llm_ext as t; mx.random.seed(3);"
        "a = mx.random.normal((70, 512)).astype(mx.bfloat16);"
        "b = mx.random.normal((300, 512)).astype(mx.bfloat16);"
        "y = t.matmul(a, b, stream=mx.cpu).astype(mx.float32);"
        "print(t.num_threads(), hash(np.array(y).tobytes()))"
    )


@pytest.mark.parametrize("shape", [(64,), (3, 64), (2, 3, 64), (1, 1, 1, 64)], ids=str)
def test_any_leading_dimensions(instruction_set, dtype, shape):
    a, b = random(*shape, dtype=dtype), random(33, 64, dtype=dtype)
    actual = matmul(a, b)
    assert actual.shape == (*shape[:-1], 33)
    flat = matmul(a.reshape(-1, 64), b)
    assert_close(actual.reshape(-1, 33), flat, "leading dimensions are rows", ulps=0)


def test_views(instruction_set, dtype):
    a, b = random(6, 4, 80, dtype=dtype), random(33, 80, dtype=dtype)
    for name, (left, right) in {
        "columns of wider arrays": (a[..., 8:48], b[:, 3:43]),
        "every second row": (a[:, ::2], b[::2]),
        "every second column": (a[..., ::2], b[:, ::2]),
        "transposed": (a.swapaxes(0, 1), random(80, 33, dtype=dtype).T),
        "broadcast": (mx.broadcast_to(a[:1, :1], a.shape), mx.broadcast_to(b[:1], b.shape)),
    }.items():
        expected = matmul(mx.contiguous(left), mx.contiguous(right))
        assert_close(matmul(left, right), expected, name, ulps=0)


def test_empty_dimensions(instruction_set, dtype):
    assert matmul(mx.zeros((0, 8), dtype), mx.zeros((3, 8), dtype)).shape == (0, 3)
    assert matmul(mx.zeros((2, 8), dtype), mx.zeros((0, 8), dtype)).shape == (2, 0)
    empty_sums = matmul(mx.zeros((2, 0), dtype), mx.zeros((3, 0), dtype))
    np.testing.assert_array_equal(as_numpy(empty_sums), np.zeros((2, 3)))


@pytest.mark.parametrize("value", [mx.nan, mx.inf, -mx.inf])
def test_nan_and_infinity_stay_in_their_row(instruction_set, dtype, value):
    a, b = random(6, 70, dtype=dtype), random(9, 70, dtype=dtype)
    clean = as_numpy(matmul(a, b))
    a[1, 69] = value
    dirty = as_numpy(matmul(a, b))
    assert not np.isfinite(dirty[1]).any()
    dirty[1] = clean[1]
    np.testing.assert_array_equal(dirty, clean)


def test_project_uses_matmul_for_half_precision(dtype):
    x, w = random(3, 64, dtype=dtype), random(33, 64, dtype=dtype)
    expected = linear(x, w) if dtype == mx.float32 else kernels.matmul(x, w)
    assert_close(project(x, w), expected, "project", ulps=0)
    assert project(x, w.astype(mx.float32)).dtype == mx.float32, (
        "expected mixed dtypes to be promoted"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": mx.zeros((2, 8), mx.int32)}, "expected a in float32, float16 or bfloat16"),
        ({"a": mx.array(1.0, mx.float16)}, "at least one dimension"),
        ({"a": mx.zeros((2, 7), mx.float16)}, "expected b with the row length of a, 7"),
        ({"b": mx.zeros((3, 8))}, "expected b in the dtype of a, float16, got float32"),
        ({"b": mx.zeros((1, 3, 8), mx.float16)}, "expected b with 2 dimensions"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_errors_name_the_argument(changes, message):
    arguments = {"a": mx.zeros((2, 8), mx.float16), "b": mx.zeros((3, 8), mx.float16)}
    with pytest.raises(ValueError, match=rf"\[matmul\] .*{message}"):
        kernels.matmul(**{**arguments, **changes})
