"""`topk_softmax` compared with NumPy: experts, order and weights."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import as_numpy, assert_close, random
from tiny_llm import kernels


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("shape", "k"), [((1, 4), 1), ((7, 16), 4), ((2, 3, 128), 8), ((5, 6), 6), ((1, 1), 1)]
)
def test_equals_numpy(device, dtype, shape, k, normalize):
    logits = random(*shape, dtype=dtype) * 3
    experts, weights = kernels.topk_softmax(logits, k, normalize)
    x = as_numpy(logits).astype(np.float64)
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    p = np.exp(x - x.max(-1, keepdims=True))
    p = np.take_along_axis(p / p.sum(-1, keepdims=True), order, -1)
    p = p / p.sum(-1, keepdims=True) if normalize else p
    assert experts.dtype == mx.uint32
    assert weights.dtype == mx.float32
    np.testing.assert_array_equal(np.array(experts), order)
    assert_close(weights, mx.array(p.astype(np.float32)), "weights", ulps=40)


def test_expert_scales(either_device, dtype):
    logits, scales = random(9, 16, dtype=dtype), random(16)
    experts, plain = kernels.topk_softmax(logits, 4, True)
    scaled_experts, weights = kernels.topk_softmax(logits, 4, True, scales)
    assert scaled_experts.tolist() == experts.tolist()
    assert_close(weights, plain * scales[experts], "weights", ulps=0)


def test_ties_pick_the_first_index(either_device):
    logits = mx.array([[1.0, 3.0, 3.0, 1.0, 3.0], [-0.0, 0.0, -1.0, -0.0, -2.0]])
    experts, _ = kernels.topk_softmax(logits, 4, True)
    assert experts.tolist() == [[1, 2, 4, 0], [0, 1, 3, 2]]


def test_order_of_nan_and_infinity(either_device, dtype):
    logits = mx.array([[mx.inf, 1.0, mx.nan, -mx.inf, -mx.nan, 2.0, mx.inf]]).astype(dtype)
    experts, weights = kernels.topk_softmax(logits, 7, False)
    assert experts.tolist() == [[2, 4, 0, 6, 5, 1, 3]]
    assert mx.isnan(weights).all()


@pytest.mark.parametrize("normalize", [False, True])
def test_nan_stays_in_its_row(device, normalize):
    logits = random(3, 8)
    logits[1, 5] = mx.nan
    experts, weights = kernels.topk_softmax(logits, 2, normalize)
    assert experts[1, 0].item() == 5
    assert mx.isnan(weights[1]).all()
    assert mx.isfinite(weights[::2]).all()


def test_large_logits(device):
    _, weights = kernels.topk_softmax(mx.array([[3e38, -3e38, 0.0]]), 2, False)
    assert weights.tolist() == [[1.0, 0.0]]
