"""Attention sinks: logits that join only the softmax's denominator, one per query head."""

import mlx.core as mx
import pytest

from tests.ops.attention_problems import MASKS, make_mask, problem
from tests.paging import cut_into_pages, padded, sequences
from tests.support import as_numpy, assert_close, assert_same_bits, random
from tiny_llm import causal_mask, kernels


def attend(query, key, value, mask, sinks, **options):
    causal = isinstance(mask, str)
    mask = None if causal else mask
    return kernels.flash_attention(query, key, value, None, causal, mask, sinks=sinks, **options)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("L", [1, 21])
@pytest.mark.parametrize("D", [65, 256])
def test_equals_mlx(instruction_set, dtype, kind, L, D):
    """A row that sees no key is zero."""
    query, key, value = problem(2, 2, 3, L, 150, D, dtype=dtype)
    mask, sinks = make_mask(kind, 2, 6, L, 150), random(6, scale=4)
    actual = attend(query, key, value, mask, sinks)
    added = causal_mask(L, 150, mx.float32) if isinstance(mask, str) else mask
    expected = mx.fast.scaled_dot_product_attention(
        *(x.astype(mx.float32) for x in (query, key, value)),
        scale=D**-0.5,
        mask=added,
        sinks=sinks,
        stream=mx.cpu,
    )
    assert_close(actual, expected.astype(dtype), kind, ulps=16)
    if kind == "masked rows":
        assert not as_numpy(actual[:, :, ::3]).any()


def test_extreme_sinks(instruction_set, dtype):
    """A sink far below the scores changes nothing; one far above them leaves zeros."""
    query, key, value = problem(1, 2, 2, 5, 70, 32, dtype=dtype)
    plain = attend(query, key, value, "causal", None)
    low = attend(query, key, value, "causal", mx.full((4,), -1e4))
    assert_close(low, plain, "low sinks", ulps=2)
    assert not as_numpy(attend(query, key, value, "causal", mx.full((4,), 1e4))).any()


def test_dense_and_paged_have_the_same_bits(instruction_set, dtype):
    pairs, sinks = sequences([130], D=40, dtype=dtype), random(4, scale=4)
    keys, values, table = cut_into_pages(pairs, 16)
    query = random(1, 4, 33, 40, dtype=dtype)
    dense = attend(query, *(x[None] for x in pairs[0]), "causal", sinks)
    pages = keys, values, padded(table), mx.array([130])
    assert_same_bits(kernels.paged_attention(query, *pages, sinks=sinks), dense, "pages")
    lens = mx.array([130])
    given = attend(query, *(x[None] for x in pairs[0]), "causal", sinks, context_lens=lens)
    assert_same_bits(given, dense, "context_lens")
    mask = mx.broadcast_to(causal_mask(33, 130, mx.float32), (1, 4, 33, 130))
    both = attend(query, *(x[None] for x in pairs[0]), mask, sinks, context_lens=lens)
    assert_same_bits(both, dense, "mask and context_lens")
