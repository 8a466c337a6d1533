"""Attention sinks: logits that join only the softmax's denominator, one per query head."""

import mlx.core as mx
import pytest

from tests.ops.attention_problems import MASKS, make_mask, problem
from tests.ops.test_int8_pages import int8_pages
from tests.ops.test_sliding_window import ENDS, LENGTHS, QUERY_LENS, free_pages_before_window
from tests.paging import cut_into_pages, padded, sequences
from tests.support import (
    as_numpy,
    assert_close,
    assert_same_bits,
    random,
)
from tiny_llm import causal_mask, kernels
from tiny_llm.attention.paged import paged_attention_varlen_reference
from tiny_llm.kv_storage.int8_rows import dequantize_rows


def attend(query, key, value, mask, sinks, **options):
    causal = isinstance(mask, str)
    mask = None if causal else mask
    return kernels.flash_attention(query, key, value, None, causal, mask, sinks=sinks, **options)


def random_sinks(H_q: int) -> mx.array:
    return random(H_q) * 4


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("L", [1, 21])
@pytest.mark.parametrize("D", [65, 256])
def test_equals_mlx(instruction_set, dtype, kind, L, D):
    """A row that sees no key is zero."""
    query, key, value = problem(2, 2, 3, L, 150, D, dtype=dtype)
    mask, sinks = make_mask(kind, 2, 6, L, 150), random_sinks(6)
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


@pytest.mark.parametrize("window", [0, 1, 70])
@pytest.mark.parametrize("page_size", [3, 64])
@pytest.mark.parametrize("is_int8", [False, True], ids=["", "int8"])
def test_pages_and_windows(instruction_set, dtype, window, page_size, is_int8):
    query, sinks = random(ENDS[-1], 6, 24, dtype=dtype), random_sinks(6)
    if is_int8:
        keys, values, table = int8_pages(LENGTHS, page_size, D=24, dtype=dtype)
        table = table.tolist()
        exact = dequantize_rows(keys), dequantize_rows(values)
    else:
        keys, values, table = cut_into_pages(sequences(LENGTHS, D=24, dtype=dtype), page_size)
        exact = keys, values
    ends, lengths = mx.array(ENDS), mx.array(LENGTHS)
    expected = paged_attention_varlen_reference(
        query.astype(mx.float32), *exact, ends, lengths, padded(table), page_size, None, window,
        sinks,
    )  # fmt: skip
    if window:
        keys, values, table = free_pages_before_window(
            (keys, values), table, QUERY_LENS, LENGTHS, page_size, window
        )
    else:
        table = padded(table)
    actual = kernels.paged_attention_varlen(
        query, keys, values, ends, lengths, table, None, window, sinks
    )
    assert_close(actual, expected.astype(dtype), "compared with the reference", ulps=32)
    for s in (0, 1, 4):  # a sequence alone, and its last query alone
        own = slice(ENDS[s], ENDS[s + 1])
        for rows, end in ((query[own], ENDS[s + 1] - ENDS[s]), (query[own][-1:], 1)):
            alone = kernels.paged_attention_varlen(
                rows, keys, values, mx.array([0, end]), lengths[s : s + 1], table[s : s + 1], None,
                window, sinks,
            )  # fmt: skip
            assert_same_bits(alone, actual[own][-end:], f"sequence {s}, {end} queries")


def test_dense_and_paged_have_the_same_bits(instruction_set, dtype):
    pairs, sinks = sequences([130], D=40, dtype=dtype), random_sinks(4)
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
