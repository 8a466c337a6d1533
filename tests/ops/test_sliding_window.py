"""Sliding windows of paged attention: visibility, freed pages, invariance."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.test_int8_pages import int8_pages
from tests.paging import cut_into_pages, padded, sequences
from tests.support import (
    as_numpy,
    assert_close,
    assert_same_bits,
    random,
)
from tiny_llm import kernels, paged_attention, paged_attention_varlen
from tiny_llm.attention import sliding_window_mask
from tiny_llm.attention.paged import paged_attention_reference, paged_attention_varlen_reference
from tiny_llm.kv_storage.int8_rows import dequantize_rows

QUERY_LENS, LENGTHS = [1, 50, 0, 1, 130, 7, 1], [200, 50, 33, 1, 150, 300, 128]
ENDS = np.cumsum([0, *QUERY_LENS]).tolist()


def free_pages_before_window(arrays, table, query_lens, lengths, page_size, window):
    """Frees pages before each sequence's first window; returns (pages, table).

    Freed float pages are filled with NaN, and their block table entries are invalid ids.
    """
    keys, values = (np.array(x.astype(mx.float32)) for x in arrays)
    rows = [list(row) for row in table]
    for row, L, S in zip(rows, query_lens, lengths, strict=True):
        for index in range(max(0, S - L + 1 - window) // page_size):
            if arrays[0].dtype != mx.int8:
                keys[row[index]] = values[row[index]] = np.nan
            row[index] = (-1, 999, -(2**31))[index % 3]
    dtype = arrays[0].dtype
    return mx.array(keys).astype(dtype), mx.array(values).astype(dtype), padded(rows, extra=1)


def in_float64(query, pair, L, S, window, scale):
    """Reference attention of one sequence in float64: L×H_q×D from H×S×D."""
    key, value = (as_numpy(x).astype(np.float64) for x in pair)
    query = as_numpy(query).astype(np.float64)
    out = np.zeros_like(query)
    for i in range(L):
        position = S - L + i
        seen = [j for j in range(S) if position - window < j <= position]
        for head in range(query.shape[1]):
            h = head // (query.shape[1] // key.shape[0])
            scores = key[h, seen] @ query[i, head] * scale
            weights = np.exp(scores - scores.max())
            out[i, head] = weights / weights.sum() @ value[h, seen]
    return out


def test_mask_equals_transformers():
    masking, torch = map(pytest.importorskip, ("transformers.masking_utils", "torch"))
    for window in (1, 2, 5, 9, 100):
        sees = masking.sliding_window_causal_mask_function(window)
        for L, S in ((1, 1), (4, 9), (9, 9), (1, 30)):
            expected = sees(None, None, torch.arange(S - L, S)[:, None], torch.arange(S)[None])
            actual = sliding_window_mask(L, S, window, mx.float32)
            np.testing.assert_array_equal(as_numpy(actual) == 0, expected.numpy())


@pytest.mark.parametrize("window", [1, 5, 64, 100, 129])
def test_equals_float64_reference(instruction_set, window):
    query_lens, lengths = [1, 9, 70], [140, 9, 200]
    pairs = sequences(lengths, D=24)
    keys, values, table = cut_into_pages(pairs, 16)
    query, ends = random(80, 4, 24), np.cumsum([0, *query_lens]).tolist()
    table = padded(table)
    actual = paged_attention_varlen(
        query, keys, values, ends, mx.array(lengths), table, 16, 0.3, window
    )
    for s, pair in enumerate(pairs):
        own = slice(ends[s], ends[s + 1])
        expected = in_float64(query[own], pair, query_lens[s], lengths[s], window, 0.3)
        np.testing.assert_allclose(as_numpy(actual[own]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("page_size", [3, 64, 128])
@pytest.mark.parametrize("window", [1, 63, 64, 90])
def test_freed_pages_are_not_read_and_rows_are_batch_invariant(
    instruction_set, dtype, page_size, window
):
    keys, values, table = cut_into_pages(sequences(LENGTHS, D=24, dtype=dtype), page_size)
    query = random(ENDS[-1], 6, 24, dtype=dtype)
    rest = mx.array(LENGTHS), padded(table), page_size, None, window
    expected = paged_attention_varlen_reference(query, keys, values, mx.array(ENDS), *rest)
    with_all = paged_attention_varlen(query, keys, values, ENDS, *rest)
    assert_close(with_all, expected, "compared with the reference", ulps=16)
    short = free_pages_before_window((keys, values), table, QUERY_LENS, LENGTHS, page_size, window)
    actual = paged_attention_varlen(
        query, *short[:2], ENDS, mx.array(LENGTHS), short[2], page_size, None, window
    )
    assert_same_bits(actual, with_all, "with freed pages")
    for s, length in enumerate(LENGTHS):
        # Reference: each query alone, with only its visible keys.
        for token in list(range(ENDS[s], ENDS[s + 1]))[::13]:
            visible = length - (ENDS[s + 1] - 1 - token)
            alone = paged_attention(
                query[token][None, :, None], keys, values, padded(table)[s : s + 1],
                mx.array([visible]), page_size, None, "causal", window,
            )  # fmt: skip
            assert_same_bits(actual[token], alone[0, :, 0], f"token {token} of sequence {s}")


@pytest.mark.parametrize("D", [1, 7, 64, 128, 256, 510])
@pytest.mark.parametrize("group", [1, 4, 150])
def test_head_sizes_and_groups(instruction_set, dtype, D, group):
    lengths = [170, 3]
    keys, values, table = cut_into_pages(sequences(lengths, H=1, D=D, dtype=dtype), 16)
    query = random(2, group, 3, D, dtype=dtype)
    arguments = query, keys, values, padded(table), mx.array(lengths), 16, None, "causal", 70
    expected = paged_attention_reference(*arguments)
    assert_close(paged_attention(*arguments), expected, "compared with the reference", ulps=16)


@pytest.mark.parametrize("window", [300, 301, 2**31 - 1])
def test_window_of_all_keys_is_bitwise_equal_to_none(instruction_set, dtype, window):
    keys, values, table = cut_into_pages(sequences(LENGTHS, D=24, dtype=dtype), 16)
    query = random(ENDS[-1], 6, 24, dtype=dtype)
    rest = query, keys, values, ENDS, mx.array(LENGTHS), padded(table), 16, None
    full = paged_attention_varlen(*rest)
    assert_same_bits(paged_attention_varlen(*rest, window), full, f"window of {window}")


@pytest.mark.parametrize("page_size", [3, 64])
@pytest.mark.parametrize("window", [1, 70, 128])
def test_int8_pages(instruction_set, dtype, page_size, window):
    keys, values, table = int8_pages(LENGTHS, page_size, D=24, dtype=dtype)
    query = random(ENDS[-1], 6, 24, dtype=dtype)
    rest = mx.array(ENDS), mx.array(LENGTHS)
    floats = dequantize_rows(keys), dequantize_rows(values)
    expected = paged_attention_varlen_reference(
        query.astype(mx.float32), *floats, *rest, table, page_size, None, window
    )
    short = free_pages_before_window(
        (keys, values), table.tolist(), QUERY_LENS, LENGTHS, page_size, window
    )[2]
    actual = paged_attention_varlen(query, keys, values, *rest, short, page_size, None, window)
    assert_close(actual, expected.astype(dtype), "dequantized", ulps=32)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 150), min_size=1, max_size=4),
    query_lens=st.lists(st.integers(0, 70), min_size=4, max_size=4),
    H=st.integers(1, 3),
    group=st.integers(1, 3),
    D=st.integers(1, 48),
    page_size=st.integers(1, 70),
    window=st.integers(1, 160),
    dtype=st.sampled_from([mx.float32, mx.float16, mx.bfloat16]),
)
def test_random_ragged_batches(lengths, query_lens, H, group, D, page_size, window, dtype):
    """Covers more queries than keys; early queries' outputs are zero."""
    lengths = [length or new for length, new in zip(lengths, query_lens, strict=False)]
    query_lens = query_lens[: len(lengths)]
    keys, values, table = cut_into_pages(sequences(lengths, H, D, dtype), page_size)
    short = free_pages_before_window((keys, values), table, query_lens, lengths, page_size, window)
    ends = mx.array(np.cumsum([0, *query_lens]).astype(np.int32))
    query = random(sum(query_lens), H * group, D, dtype=dtype)
    lens, tables = mx.array(lengths, mx.int32), padded(table, extra=1)
    expected = paged_attention_varlen_reference(
        query, keys, values, ends, lens, tables, page_size, None, window
    )
    actual = paged_attention_varlen(
        query, *short[:2], ends, lens, short[2], page_size, None, window
    )
    assert_close(actual, expected, "compared with gathered pages", ulps=16)


def test_invalid_page_in_a_window_is_nan_in_its_sequence_only(instruction_set, dtype):
    lengths = [20, 90, 40]
    keys, values, table = cut_into_pages(sequences(lengths, dtype=dtype), 8)
    query = random(3, 4, 2, 40, dtype=dtype)
    rest = mx.array(lengths), 8, None, "causal", 10
    expected = paged_attention(query, keys, values, padded(table), *rest)
    assert np.isfinite(as_numpy(expected)).all()
    for index in (9, 10, 11):  # pages in the first query's window, which starts at key 79
        broken = [table[0], [*table[1][:index], -1, *table[1][index + 1 :]], table[2]]
        actual = paged_attention(query, keys, values, padded(broken), *rest)
        assert np.isnan(as_numpy(actual[1])).all()
        assert_same_bits(actual[::2], expected[::2], "other sequences")


def test_non_finite_values_before_the_window_are_ignored(instruction_set, dtype):
    """The window starts inside a page, whose masked keys are not finite."""
    keys, values, [row] = cut_into_pages(sequences([100], dtype=dtype), 64)
    query = random(1, 4, 3, 40, dtype=dtype)
    rest = [row], [100], 64, None, "causal", 20
    expected = paged_attention(query, keys, values, *rest)
    for bad in (mx.nan, mx.inf):
        dirty = [mx.array(x) for x in (keys, values)]
        for pages in dirty:
            pages[row[0]] = bad
            pages[row[1], :, : 78 - 64] = bad  # not visible: the first query sees keys 78 to 97
        assert_same_bits(
            paged_attention(query, *dirty, *rest), expected, f"{bad} before the window"
        )


def test_fallback_without_the_extension(monkeypatch):
    keys, values, [row] = cut_into_pages(sequences([19]), 4)
    query, table = random(3, 4, 40), [[-1, -1, -1, *row[3:]]]
    arguments = table, [19], 4, None
    by_kernel = paged_attention_varlen(query, keys, values, [0, 3], [19], table, 4, None, 5)
    batch = query.swapaxes(0, 1)[None], keys, values
    assert_same_bits(
        paged_attention(*batch, *arguments, "causal", 5)[0].swapaxes(0, 1), by_kernel, "batch"
    )
    monkeypatch.setattr(kernels, "is_built", lambda: False)
    monkeypatch.setattr(kernels, "extension", None)
    plain = paged_attention_varlen(query, keys, values, [0, 3], [19], table, 4, None, 5)
    assert_close(plain, by_kernel, "ragged", ulps=16)
    plain = paged_attention(*batch, *arguments, "causal", 5)[0].swapaxes(0, 1)
    assert_close(plain, by_kernel, "batch", ulps=16)
    with pytest.raises(ValueError, match="page ids from 0 to"):
        paged_attention_varlen(query, keys, values, [0, 3], [19], table, 4, None, 6)
