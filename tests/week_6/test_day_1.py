"""Week 6, day 1, optional: router, grouped matmul and weighted sum."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from tests.models.support import MIXTURE, sequence_logits
from tests.support import as_numpy, assert_close, assert_equal, assert_same_bits, random
from tiny_llm.models.checkpoint.dummy import random_checkpoint
from tiny_llm.models.families.decoder import Decoder
from tiny_llm.models.families.experts import (
    SeparateExperts,
    combine_experts,
    expert_segments,
    select_experts,
    sort_by_expert,
)

pytestmark = pytest.mark.usefixtures("on_cpu")

QUANTIZED = {"bits": 4, "group_size": 64}
# (leading dimensions, number of experts X, experts per token k)
ROUTERS = [((1,), 4, 1), ((7,), 16, 4), ((2, 3), 128, 8), ((5,), 6, 6)]


def stacked_experts(**changes: Any) -> Any:
    """Stacked experts of a random layer: 6 experts, 128 inputs, 64 features."""
    return random_checkpoint({**MIXTURE, **changes}).layers[1].mlp.switch_mlp


@pytest.mark.parametrize("normalized", [False, True], ids=["unnormalized", "normalized"])
def test_task_1_example(normalized):
    logits = mx.log(mx.array([[0.1, 0.4, 0.2, 0.3]]))
    experts, routing_weights = select_experts(logits, 2, normalized)
    assert_equal(experts.tolist(), [[1, 3]], "the most likely expert first")
    expected = [[4 / 7, 3 / 7]] if normalized else [[0.4, 0.3]]
    assert_close(routing_weights, mx.array(expected), "routing weights of 0.4 and 0.3", ulps=8)


@pytest.mark.parametrize("normalized", [False, True], ids=["unnormalized", "normalized"])
@pytest.mark.parametrize("router", ROUTERS, ids=str)
def test_task_1_weights_equal_numpy(dtype, router, normalized):
    leading, num_experts, k = router
    logits = random(*leading, num_experts, dtype=dtype) * 3
    experts, routing_weights = select_experts(logits, k, normalized)
    x = as_numpy(logits).astype(np.float64)
    p = np.exp(x - x.max(-1, keepdims=True))
    p = -np.sort(-p / p.sum(-1, keepdims=True), axis=-1)[..., :k]
    p = p / p.sum(-1, keepdims=True) if normalized else p
    assert_equal(routing_weights.dtype, mx.float32, "routing weights in float32")
    assert_close(routing_weights, mx.array(p.astype(np.float32)), "routing weights", ulps=40)
    chosen = mx.take_along_axis(logits, experts, axis=-1)
    largest = mx.array(-np.sort(-x, axis=-1)[..., :k])
    assert_close(chosen, largest, "logits of the chosen experts", ulps=0)


def test_task_1_large_logits():
    _, routing_weights = select_experts(mx.array([[1e5, -1e5, 1e5 - 1]]), 2, False)
    expected = mx.array([[0.731059, 0.268941]])
    assert_close(routing_weights, expected, "routing weights of logits around 1e5", ulps=40)


def test_task_2_example():
    order, inverse = sort_by_expert(mx.array([3, 0, 3, 1, 0, 3], mx.uint32))
    assert order.tolist() == [1, 4, 3, 0, 2, 5], f"expected a stable sort, got {order.tolist()}"
    assert_equal(inverse.tolist(), [3, 0, 4, 2, 1, 5], "the inverse permutation")


@pytest.mark.parametrize("num_products", [1, 2, 17, 400])
def test_task_2_sort_round_trip(num_products):
    experts = mx.random.randint(0, 16, (num_products,)).astype(mx.uint32)
    order, inverse = sort_by_expert(experts)
    in_order = experts[order]
    assert in_order.tolist() == sorted(experts.tolist())
    assert_equal(in_order[inverse].tolist(), experts.tolist(), "`inverse` to restore the order")


@pytest.mark.parametrize(
    ("experts", "expected"),
    [
        ([0, 0, 3, 5, 5, 5], [(0, 0, 2), (3, 2, 3), (5, 3, 6)]),
        ([7], [(7, 0, 1)]),
        ([1, 2, 4], [(1, 0, 1), (2, 1, 2), (4, 2, 3)]),
        ([2] * 9, [(2, 0, 9)]),
    ],
    ids=["three runs", "one product", "all different", "all equal"],
)
def test_task_2_runs(experts, expected):
    assert_equal([tuple(run) for run in expert_segments(mx.array(experts, mx.uint32))], expected)


def plain_experts(stacked: Any, x: mx.array, experts: mx.array) -> mx.array:
    """Reference: runs each token through its experts one at a time."""
    gate, up, down = (stacked[name].weight for name in ("gate_proj", "up_proj", "down_proj"))
    outputs = [
        (nn.silu(token @ gate[e].T) * (token @ up[e].T)) @ down[e].T
        for token, chosen in zip(x, experts.tolist(), strict=True)
        for e in chosen
    ]
    return mx.stack(outputs).reshape(*experts.shape, -1)


@pytest.mark.parametrize("tokens", [1, 5, 33])
def test_task_3_equals_per_token_experts(tokens):
    stacked = stacked_experts(torch_dtype="float32")
    x, experts = random(tokens, 128), mx.random.randint(0, 6, (tokens, 2)).astype(mx.uint32)
    actual = SeparateExperts(stacked, mx.float32)(x, experts)
    assert_close(actual, plain_experts(stacked, x, experts), "outputs T×K×E", ulps=64)


def test_task_3_only_selected_experts_run_once_each():
    calls: dict[int, list[int]] = {}

    def expert(number: int) -> Any:
        def multiply(rows: mx.array) -> mx.array:
            calls.setdefault(number, []).append(rows.shape[0])
            return rows * (10.0**number)

        return multiply

    mlps = SeparateExperts.__new__(SeparateExperts)
    mlps.experts = [expert(number) for number in range(6)]  # type: ignore[misc]
    x = mx.array([[1.0], [2.0], [3.0]])
    outputs = mlps(x, mx.array([[4, 1], [5, 2], [4, 2]], mx.uint32))
    one_call_each = {4: [2], 1: [1], 5: [1], 2: [2]}
    assert_equal(calls, one_call_each, "one call per chosen expert, with all its rows")
    expected = mx.array([[1e4, 1e1], [2e5, 2e2], [3e4, 3e2]])[..., None]
    assert_close(outputs, expected, "outputs T×K×E", ulps=0)


def test_task_3_tokens_are_batch_invariant():
    experts_of_layer = SeparateExperts(stacked_experts(quantization=QUANTIZED), mx.bfloat16)
    x = random(2, 9, 128, dtype=mx.bfloat16)
    experts = mx.random.randint(0, 6, (2, 9, 3)).astype(mx.uint32)
    together = experts_of_layer(x, experts)
    assert together.shape == (2, 9, 3, 128)
    for row, token in ((0, 0), (0, 7), (1, 8)):
        alone = experts_of_layer(x[row, token], experts[row, token])
        assert_same_bits(together[row, token], alone, f"token {token} of row {row}")


@pytest.mark.parametrize("shape", [(1, 1, 5), (3, 2, 64), (2, 5, 8, 67)], ids=str)
def test_task_4_float32_sum_is_rounded_once(dtype, shape):
    outputs, routing_weights = random(*shape, dtype=dtype), mx.abs(random(*shape[:-1]))
    expected = np.zeros((*shape[:-2], shape[-1]), np.float32)
    for k in range(shape[-2]):
        expected += as_numpy(routing_weights)[..., k, None] * as_numpy(outputs)[..., k, :]
    total = combine_experts(outputs, routing_weights)
    assert_same_bits(total, mx.array(expected).astype(dtype), "Σ_k routing_weights[k] · outputs[k]")


def test_task_4_logits_equal_mlx_lm():
    from mlx_lm.models import qwen3_moe

    mlx_model = qwen3_moe.Model(qwen3_moe.ModelArgs.from_dict(MIXTURE))
    mx.random.seed(7)
    mlx_model.apply(lambda weight: random(*weight.shape) * weight.shape[-1] ** -0.5)
    nn.quantize(mlx_model, class_predicate=lambda path, m: hasattr(m, "to_quantized"), **QUANTIZED)
    mlx_model.set_dtype(mx.bfloat16, lambda dtype: mx.issubdtype(dtype, mx.floating))
    tokens = [17, 5, 99, 3, 180, 42, 7]
    [expected] = mlx_model(mx.array([tokens]))
    actual = sequence_logits(Decoder(mlx_model, page_size=16), tokens)
    assert_close(actual, expected, "logits", ulps=16)


def test_task_4_unnormalized_weights():
    total = combine_experts(mx.ones((1, 2, 3)), mx.array([[0.25, 0.125]]))
    assert_close(total, mx.full((1, 3), 0.375), "1/4 and 1/8 of 1", ulps=0)
