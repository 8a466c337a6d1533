"""Week 1, day 3: grouped attention, causal mask, Qwen3's attention layer."""

from typing import TYPE_CHECKING

import mlx.core as mx
import pytest

from tests.support import assert_close, random, tiny_model
from tiny_llm import (
    Qwen3MultiHeadAttention,
    causal_mask,
    linear,
    scaled_dot_product_attention_grouped,
)

if TYPE_CHECKING:
    from mlx_lm.models import qwen3

HEADS = [(1, 1), (4, 4), (6, 3), (8, 2), (7, 1)]


@pytest.mark.parametrize(("H_q", "H"), HEADS)
@pytest.mark.parametrize(("L", "S"), [(1, 1), (5, 5), (3, 17)])
@pytest.mark.parametrize("mask", [None, "array"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_task_1_grouped(device, dtype, H_q, H, L, S, mask, scale):
    D = 8
    query = random(2, H_q, L, D, dtype=dtype)
    key, value = (random(2, H, S, D, dtype=dtype) for _ in range(2))
    mask = random(2, H_q, L, S, dtype=dtype) if mask else None
    expected = mx.fast.scaled_dot_product_attention(
        query, key, value, scale=D**-0.5 if scale is None else scale, mask=mask
    )
    actual = scaled_dot_product_attention_grouped(query, key, value, scale=scale, mask=mask)
    assert_close(actual, expected, f"grouped attention, {H_q} heads over {H}", ulps=8)


def test_task_1_keys_and_values_are_not_repeated_in_memory(device):
    query, key, value = random(1, 16, 1, 128), *(random(1, 2, 4096, 128) for _ in range(2))
    mx.eval(query, key, value)
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(scaled_dot_product_attention_grouped(query, key, value))
    used = mx.get_peak_memory() - before
    assert used < key.nbytes + value.nbytes, (
        f"expected less memory than keys and values have, {2 * key.nbytes / 1e6:.1f} MB, got "
        f"{used / 1e6:.1f} MB: broadcast them over the heads of a group, do not repeat them"
    )


def test_task_1_bool_mask_is_true_for_visible_keys(device):
    query, key = random(2, 4, 3, 8), random(2, 2, 5, 8)
    visible = mx.random.uniform(shape=(3, 5)) < 0.6
    visible[:, 0] = True
    actual = scaled_dot_product_attention_grouped(query, key, key, mask=visible)
    added = mx.where(visible, 0.0, -mx.inf)
    expected = scaled_dot_product_attention_grouped(query, key, key, mask=added)
    assert_close(actual, expected, "True is visible, False is −inf", ulps=0)


@pytest.mark.parametrize("leading", [(), (3,), (2, 2)])
def test_task_1_any_leading_dimensions(device, leading):
    query = random(*leading, 4, 3, 8)
    key, value = (random(*leading, 2, 6, 8) for _ in range(2))
    expected = mx.fast.scaled_dot_product_attention(
        query.reshape(-1, 4, 3, 8), key.reshape(-1, 2, 6, 8), value.reshape(-1, 2, 6, 8), scale=0.5
    )
    actual = scaled_dot_product_attention_grouped(query, key, value, scale=0.5)
    assert_close(actual, expected.reshape(query.shape), f"leading dimensions {leading}", ulps=8)


@pytest.mark.parametrize("shape", [(3, 5), (1, 1, 3, 5), (2, 1, 3, 5), (6, 3, 5), (2, 1, 1, 5)])
def test_task_1_masks_broadcast(device, shape):
    query = random(2, 6, 3, 8)
    key, value = (random(2, 2, 5, 8) for _ in range(2))
    mask = random(*shape)
    expected = mx.fast.scaled_dot_product_attention(
        query, key, value, scale=8**-0.5, mask=mx.broadcast_to(mask, (2, 6, 3, 5))
    )
    actual = scaled_dot_product_attention_grouped(query, key, value, mask=mask)
    assert_close(actual, expected, f"a mask of shape {shape}, broadcast to B×H_q×L×S", ulps=8)


def test_task_1_kv_heads_must_divide_query_heads():
    query, key = mx.zeros((1, 5, 1, 8)), mx.zeros((1, 2, 1, 8))
    with pytest.raises(ValueError, match="got 2 and 5"):
        scaled_dot_product_attention_grouped(query, key, key)


@pytest.mark.parametrize(("L", "S"), [(1, 1), (4, 4), (3, 5), (1, 7), (5, 3)])
def test_task_2_causal_mask(device, dtype, L, S):
    mask = causal_mask(L, S, dtype)
    expected = [[0.0 if j <= i + S - L else -float("inf") for j in range(S)] for i in range(L)]
    assert mask.tolist() == expected, "expected query i to see key j if and only if j ≤ i + S − L"
    assert mask.dtype == dtype


@pytest.mark.parametrize(("H_q", "H"), HEADS)
@pytest.mark.parametrize(("L", "S"), [(1, 1), (5, 5), (3, 17)])
def test_task_2_causal_attention(device, dtype, H_q, H, L, S):
    query = random(2, H_q, L, 8, dtype=dtype)
    key, value = (random(2, H, S, 8, dtype=dtype) for _ in range(2))
    expected = mx.fast.scaled_dot_product_attention(query, key, value, scale=8**-0.5, mask="causal")
    actual = scaled_dot_product_attention_grouped(query, key, value, mask="causal")
    assert_close(actual, expected, f"causal attention of {L} queries to {S} keys", ulps=8)


def test_task_2_unknown_mask():
    x = mx.zeros((1, 1, 1, 8))
    with pytest.raises(ValueError, match='or an array, got "casual"'):
        scaled_dot_product_attention_grouped(x, x, x, mask="casual")


def attention_from(oracle: "qwen3.Attention", args: "qwen3.ModelArgs") -> Qwen3MultiHeadAttention:
    sizes = args.hidden_size, args.num_attention_heads, args.num_key_value_heads, args.head_dim
    weights = [getattr(oracle, f"{name}_proj").weight for name in "qkvo"]
    norms = oracle.q_norm.weight, oracle.k_norm.weight
    limits = args.max_position_embeddings, args.rope_theta, args.rms_norm_eps
    return Qwen3MultiHeadAttention(*sizes, *weights, *norms, *limits)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("mask", [None, "causal", "array"])
def test_task_3_qwen3_attention(device, dtype, heads, mask):
    # head_dim 16 × 4 heads = 64, but hidden size 48: Qwen3's sizes are independent.
    model = tiny_model(dtype, num_attention_heads=heads[0], num_key_value_heads=heads[1])
    oracle = model.model.layers[0].self_attn
    x = random(2, 9, 48, dtype=dtype)
    mask = causal_mask(9, 9, dtype) if mask == "array" else mask
    actual = attention_from(oracle, model.args)(x, mask)
    assert actual.dtype == dtype
    hint = "norm on each head, then RoPE over halves, then attention in float32"
    assert_close(actual, oracle(x, mask), f"Qwen3 attention ({hint})", ulps=8)


def test_task_3_scores_are_in_float32(device):
    # Scores are large and close, so bfloat16, whose spacing is 1/2 above 64, would be too coarse.
    model = tiny_model(mx.bfloat16)
    oracle, args = model.model.layers[0].self_attn, model.args
    oracle.q_norm.weight = oracle.k_norm.weight = mx.full(16, 5, dtype=mx.bfloat16)
    layer, x = attention_from(oracle, args), random(1, 40, 48, dtype=mx.bfloat16)
    query, key = (
        layer.rope(norm(linear(x, weight).reshape(1, 40, heads, 16))).swapaxes(1, 2)
        for norm, weight, heads in ((layer.q_norm, layer.wq, 4), (layer.k_norm, layer.wk, 2))
    )
    value = linear(x, layer.wv).reshape(1, 40, 2, 16).swapaxes(1, 2)
    attended = mx.fast.scaled_dot_product_attention(
        *(part.astype(mx.float32) for part in (query, key, value)), scale=16**-0.5, mask="causal"
    ).astype(mx.bfloat16)
    expected = linear(attended.swapaxes(1, 2).reshape(1, 40, 64), layer.wo)
    assert_close(layer(x, "causal"), expected, "attention with float32 scores", ulps=2)
