"""Week 1, day 1: attention and multi-head attention."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from tests.support import EPSILON, as_numpy, assert_close, random
from tiny_llm import SimpleMultiHeadAttention, linear, scaled_dot_product_attention_simple, softmax


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_task_1_softmax(device, dtype, axis):
    x = random(7, 3, 33, dtype=dtype, scale=4)
    assert_close(softmax(x, axis), mx.softmax(x, axis=axis), f"softmax over axis {axis}")


def test_task_1_softmax_is_stable(device, dtype):
    x = mx.array([[1000.0, 1000.0], [-1000.0, -1000.0]], dtype=dtype)
    assert softmax(x, -1).tolist() == [[0.5, 0.5]] * 2, (
        "expected 0.5 in a row far below the other one: subtract each row's own maximum"
    )
    # A running sum of 4,096 ones stalls at 256 in bfloat16 and at 2,048 in float16.
    total = as_numpy(softmax(mx.zeros((1, 4096), dtype), -1)).sum()
    assert total == pytest.approx(1, abs=1e-3), (
        "expected probabilities with sum 1: accumulate the sum in float32"
    )


@pytest.mark.parametrize("half", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
def test_task_1_softmax_rounds_once(device, half):
    x = random(16, 512, dtype=half, scale=4)
    expected = as_numpy(mx.softmax(x.astype(mx.float32), axis=-1))
    actual = as_numpy(softmax(x, -1))
    error = np.abs(actual - expected)
    ulps = np.where(expected > 1e-3, error / expected / EPSILON[half], 0)
    row, column = np.unravel_index(ulps.argmax(), ulps.shape)
    assert ulps.max() <= 0.51, (
        f"expected the probability {expected[row, column]:.5f}, got {actual[row, column]:.5f}, "
        f"{ulps.max():.1f} units in the last place away: subtract, exponentiate and sum in float32"
    )


def test_task_1_softmax_of_a_fully_masked_row_is_nan(device):
    row = as_numpy(softmax(mx.full((1, 3), -mx.inf), -1))
    assert np.isnan(row).all(), f"expected NaN, as no probabilities sum to 1, got {row.tolist()}"


@pytest.mark.parametrize("leading", [(), (3,), (2, 5)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3, 0.0])
def test_task_1_attention(device, dtype, leading, masked, scale):
    L, S, D = 5, 9, 12
    arrays = query, key, value = [random(*leading, n, D, dtype=dtype) for n in (L, S, S)]
    mask = random(L, S, dtype=dtype) if masked else None
    four = [x.reshape(1, -1, *x.shape[-2:]) for x in arrays]
    expected = mx.fast.scaled_dot_product_attention(
        *four, scale=D**-0.5 if scale is None else scale, mask=mask
    ).reshape(*leading, L, D)
    actual = scaled_dot_product_attention_simple(query, key, value, scale=scale, mask=mask)
    assert_close(actual, expected, "attention (scale is 1/√D by default; the mask is added)", 8)
    assert actual.dtype == dtype


def test_task_1_additive_masks(device):
    query, key, value = (random(4, 6, dtype=mx.bfloat16) for _ in range(3))
    actual = scaled_dot_product_attention_simple(query, key, value, mask=random(4, 4))
    assert actual.dtype == mx.bfloat16, (
        f"expected the queries' dtype, bfloat16, got {actual.dtype}: a float32 mask promotes "
        "the scores to float32"
    )
    query, key = mx.ones((1, 4)), mx.array([[0.0] * 4, [100.0] * 4])
    mask = mx.array([[0.0, -mx.inf]])
    actual = scaled_dot_product_attention_simple(query, key, mx.array([[1.0], [5.0]]), mask=mask)
    assert actual.tolist() == [[1.0]], "expected the value of the visible key alone"


@pytest.mark.parametrize("mask", ["causal", mx.ones((2, 2), dtype=mx.bool_)])
def test_task_1_incompatible_mask_is_rejected(mask):
    x = mx.zeros((2, 4))
    with pytest.raises(ValueError, match="must be a floating-point array to add"):
        scaled_dot_product_attention_simple(x, x, x, mask=mask)


@pytest.mark.parametrize("leading", [(), (3,), (2, 5)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_task_2_linear(device, dtype, leading, has_bias):
    layer = nn.Linear(67, 33, bias=has_bias)
    layer.set_dtype(dtype)
    x = random(*leading, 67, dtype=dtype)
    actual = linear(x, layer.weight, layer.bias if has_bias else None)
    assert_close(actual, layer(x), "linear (x @ wᵀ + bias; w is O×I)")


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("mask_shape", [None, "L×S", "B×1×L×S", "B×H×L×S"])
@pytest.mark.parametrize(("L", "S"), [(7, 7), (3, 11)])
def test_task_2_multi_head_attention(device, dtype, batch, heads, mask_shape, L, S):
    E = 32
    shapes = {"L×S": (), "B×1×L×S": (batch, 1), "B×H×L×S": (batch, heads)}
    oracle = nn.MultiHeadAttention(E, heads)
    oracle.set_dtype(dtype)
    mask = None if mask_shape is None else random(*shapes[mask_shape], L, S, dtype=dtype)
    query, key, value = (random(batch, n, E, dtype=dtype) for n in (L, S, S))
    layers = (oracle.query_proj, oracle.key_proj, oracle.value_proj, oracle.out_proj)
    layer = SimpleMultiHeadAttention(E, heads, *(projection.weight for projection in layers))
    actual = layer(query, key, value, mask)
    assert_close(actual, oracle(query, key, value, mask), "multi-head attention", 8)


def test_task_2_num_heads_must_divide_hidden_size():
    w = mx.zeros((32, 32))
    with pytest.raises(ValueError, match="5 heads for hidden_size 32"):
        SimpleMultiHeadAttention(32, 5, w, w, w, w)
