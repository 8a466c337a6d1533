"""`rms_norm`, `add_rms_norm`: compared with the layer, exact values and MLX."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import EPSILON, as_numpy, assert_close, random
from tiny_llm import kernels
from tiny_llm.layer_norm import RMSNorm

EPS = 1e-6
SHAPES = [(1,), (7,), (1, 16), (3, 33), (2, 5, 64), (1, 1, 1024), (4, 1023), (300, 130)]


def rms_norm(x: mx.array, weight: mx.array) -> mx.array:
    result = kernels.rms_norm(x, weight, EPS)
    mx.eval(result)
    return result


def add_rms_norm(x: mx.array, y: mx.array, weight: mx.array) -> tuple[mx.array, mx.array]:
    results = kernels.add_rms_norm(x, y, weight, EPS)
    mx.eval(results)
    return results


def problem(*shape: int, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    return random(*shape, dtype=dtype), (1 + 0.3 * random(shape[-1])).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_is_exact_up_to_rounding(instruction_set, dtype, shape):
    x, weight = problem(*shape, dtype=dtype)
    x64, w64 = as_numpy(x).astype(np.float64), as_numpy(weight).astype(np.float64)
    expected = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + EPS) * w64
    # Half an epsilon each for the normalized row and for its product with the weight. In float32,
    # the sum of D squares has an error below D·ε/2, which the root halves; root, division and
    # product add less than 3 ε. 2⁻²⁴ is the spacing of float16's subnormal numbers.
    bound = np.abs(expected) * (EPSILON[dtype] + (shape[-1] / 4 + 3) * EPSILON[mx.float32])
    error = np.abs(as_numpy(rms_norm(x, weight)) - expected)
    assert (error <= 1.01 * bound + 2.0**-24).all(), (
        f"the largest error is {(error / (bound + 2.0**-24)).max():.2f} × its bound"
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_readable_layer(instruction_set, dtype, shape):
    x, weight = problem(*shape, dtype=dtype)
    layer = RMSNorm(shape[-1], weight, eps=EPS)
    # rms_norm and RMSNorm sum in different orders, which can change one rounding. In float32, the
    # error of RMSNorm's sequential sum is up to D roundings.
    ulps = 2 if dtype != mx.float32 else 2 + shape[-1] / 16
    assert_close(rms_norm(x, weight), layer(x), "rms_norm compared with RMSNorm", ulps)
    expected = mx.fast.rms_norm(x, weight, EPS, stream=mx.cpu)
    assert_close(rms_norm(x, weight), expected, "rms_norm compared with mx.fast", ulps)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float32_weight_is_exact_up_to_one_rounding(instruction_set, dtype, shape):
    x, y, weight = random(*shape, dtype=dtype), random(*shape, dtype=dtype), random(shape[-1])
    total, normed = add_rms_norm(x, y, weight)
    assert normed.dtype == dtype
    x64, w64 = as_numpy(total).astype(np.float64), as_numpy(weight).astype(np.float64)
    expected = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + EPS) * w64
    rounding = EPSILON[dtype] / 2 + (shape[-1] / 4 + 3) * EPSILON[mx.float32]
    error = np.abs(as_numpy(normed) - expected)
    assert (error <= 1.01 * np.abs(expected) * rounding + 2.0**-25).all()
    in_float32 = rms_norm(total.astype(mx.float32), weight).astype(dtype)
    assert_close(normed, in_float32, "the float32 norm, rounded", ulps=0)
    assert_close(rms_norm(total, weight), normed, "without the addition", ulps=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_add_rms_norm_equals_sum_and_norm(instruction_set, dtype, shape):
    x, weight = problem(*shape, dtype=dtype)
    y = random(*shape, dtype=dtype)
    total, normalized = add_rms_norm(x, y, weight)
    assert_close(total, x + y, "sum", ulps=0)
    assert_close(normalized, rms_norm(x + y, weight), "norm of the sum", ulps=0)


def test_rows_are_batch_invariant(instruction_set, dtype):
    x, weight = problem(50, 1000, dtype=dtype)
    together = as_numpy(rms_norm(x, weight))
    for row in (0, 1, 17, 49):
        alone = as_numpy(rms_norm(x[row], weight))
        np.testing.assert_array_equal(alone, together[row], "bitwise")


def test_views(instruction_set, dtype):
    x, weight = problem(6, 4, 80, dtype=dtype)
    views = {
        "columns of a wider array": x[..., 8:48],
        "every second row": x[:, ::2, :40],
        "every second column": x[..., ::2],
        "transposed": x.swapaxes(0, 1)[..., :40],
        "broadcast": mx.broadcast_to(x[:1, :1, :40], (6, 4, 40)),
        "columns as rows": x[:5, :, :40].swapaxes(1, 2).reshape(-1, 4, 5)[:, :4].swapaxes(0, 2),
    }
    for name, view in views.items():
        w = mx.concatenate([weight] * 2)[: view.shape[-1]]
        expected = rms_norm(mx.contiguous(view), w)
        assert_close(rms_norm(view, w), expected, name, ulps=0)
        for total in (add_rms_norm(view, mx.ones_like(view), w), add_rms_norm(view, view, w)):
            assert total[0].shape == view.shape
        expected = rms_norm(view + mx.contiguous(view), w)
        assert_close(add_rms_norm(view, view, w)[1], expected, f"add, {name}", ulps=0)
    strided_weight = mx.concatenate([weight, weight])[::2]
    assert_close(
        rms_norm(x, strided_weight), rms_norm(x, mx.contiguous(strided_weight)), "weight", ulps=0
    )


def test_shared_input_is_not_overwritten(instruction_set):
    x, weight = problem(3, 64, dtype=mx.bfloat16)
    before = as_numpy(x)
    y = x * 2  # not donatable, because another pending operation reads it
    normalized = kernels.rms_norm(y, weight, EPS)
    total, _ = kernels.add_rms_norm(y, y, weight, EPS)
    mx.eval(normalized, total, y)
    np.testing.assert_array_equal(as_numpy(x), before)
    np.testing.assert_array_equal(as_numpy(y), 2 * before)
    np.testing.assert_array_equal(as_numpy(total), 4 * before)


def test_unshared_inputs_are_donated(instruction_set, dtype):
    x, weight = problem(9, 50, dtype=dtype)
    y = random(9, 50, dtype=dtype)
    for rows in (slice(None), slice(3, None), slice(None, None, 2)):
        doubled, tripled = mx.contiguous((x * 2)[rows]), mx.contiguous((y * 3)[rows])
        mx.eval(doubled, tripled)
        in_place = add_rms_norm((x * 2)[rows], (y * 3)[rows], weight)
        for actual, expected in zip(in_place, add_rms_norm(doubled, tripled, weight), strict=True):
            assert_close(actual, expected, "add_rms_norm in place", ulps=0)
        expected = rms_norm(doubled, weight)
        assert_close(rms_norm((x * 2)[rows], weight), expected, "rms_norm in place", ulps=0)


def test_no_rows_and_no_columns(instruction_set, dtype):
    for shape in [(0, 8), (3, 0), (0,)]:
        x, weight = mx.zeros(shape, dtype), mx.ones((shape[-1],), dtype)
        assert rms_norm(x, weight).shape == shape
        assert [y.shape for y in add_rms_norm(x, x, weight)] == [shape, shape]


def test_zeros_stay_zeros(instruction_set, dtype):
    x, weight = problem(2, 40, dtype=dtype)
    np.testing.assert_array_equal(as_numpy(rms_norm(0 * x, weight)), 0)


@pytest.mark.parametrize("value", [mx.nan, mx.inf, -mx.inf])
def test_nan_and_infinity_stay_in_their_row(instruction_set, dtype, value):
    x, weight = problem(3, 40, dtype=dtype)
    clean = as_numpy(rms_norm(x, weight))
    x[1, 5] = value
    dirty = as_numpy(rms_norm(x, weight))
    assert np.isnan(dirty[1, 5])
    np.testing.assert_array_equal(dirty[[0, 2]], clean[[0, 2]])


def test_works_inside_mx_compile(instruction_set):
    x, weight = problem(3, 40, dtype=mx.float16)
    compiled = mx.compile(lambda x: kernels.add_rms_norm(x, x, weight, EPS)[1])
    assert_close(compiled(x), add_rms_norm(x, x, weight)[1], "mx.compile", ulps=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x": mx.zeros((2, 8), mx.int32)},
            "expected x in float32, float16 or bfloat16, got int32",
        ),
        ({"x": mx.array(1.0, mx.bfloat16)}, "at least one dimension"),
        ({"weight": mx.zeros((9,), mx.bfloat16)}, r"expected weight of shape \(8\)"),
        ({"weight": mx.zeros((1, 8), mx.bfloat16)}, r"expected weight of shape \(8\)"),
        (
            {"weight": mx.zeros((8,), mx.float16)},
            "expected weight in float32 or the dtype of x, bfloat16, got float16",
        ),
        ({"y": mx.zeros((1, 8), mx.bfloat16)}, "expected y of the shape of x"),
        ({"y": mx.zeros((2, 8), mx.float16)}, "expected y in the dtype of x"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_errors_name_the_argument(changes, message):
    zeros = mx.zeros((2, 8), mx.bfloat16)
    arguments = {"x": zeros, "y": zeros, "weight": mx.zeros((8,), mx.bfloat16), **changes}
    with pytest.raises(ValueError, match=rf"\[add_rms_norm\] .*{message}"):
        kernels.add_rms_norm(**arguments, eps=EPS)
    if "y" not in changes:
        del arguments["y"]
        with pytest.raises(ValueError, match=rf"\[rms_norm\] .*{message}"):
            kernels.rms_norm(**arguments, eps=EPS)
