"""Paged attention: references, windows, 8-bit pages, sinks, invalid pages."""

import itertools

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.paging import cut_into_pages, free_pages_before_window, int8_pages, padded, sequences
from tests.support import as_numpy, assert_close, assert_same_bits, random
from tiny_llm import flash_attention, kernels, paged_attention, paged_attention_varlen
from tiny_llm.attention import sliding_window_mask
from tiny_llm.attention.paged import paged_attention_reference, paged_attention_varlen_reference
from tiny_llm.kv_storage.int8_rows import dequantize_rows


def dense(query, keys, values, scale=None, mask="causal"):
    """Flash attention of one sequence, H_q×L×D, on contiguous keys and values."""
    return flash_attention(query[None], keys[None], values[None], scale, mask)[0]


@pytest.mark.parametrize("page_size", [1, 5, 16, 64, 96, 128, 200])
@pytest.mark.parametrize("mask", ["causal", None])
@pytest.mark.parametrize("L", [1, 40])
def test_bitwise_equal_to_flash_attention_for_any_page_size(
    instruction_set, dtype, page_size, mask, L
):
    lengths = [40, 1, 64, 200, 129]
    pairs = sequences(lengths, dtype=dtype)
    query = random(len(lengths), 4, L, 40, dtype=dtype)
    keys, values, table = cut_into_pages(pairs, page_size)
    actual = paged_attention(
        query, keys, values, padded(table), mx.array(lengths), page_size, 0.2, mask
    )
    for row, (k, v) in enumerate(pairs):
        expected = dense(query[row], k, v, 0.2, mask)
        assert_same_bits(actual[row], expected, f"{lengths[row]} keys in pages of {page_size}")


QUERY_LENS, LENGTHS = [1, 50, 0, 1, 130, 7, 1], [200, 50, 33, 1, 150, 300, 128]
ENDS = np.cumsum([0, *QUERY_LENS]).tolist()


def pages_of(lengths, page_size, D, dtype, is_int8=False, H=2):
    """Key pages, value pages, page ids of each sequence, and the pages dequantized."""
    if is_int8:
        keys, values, table = int8_pages(lengths, page_size, H, D, dtype)
        return keys, values, table, (dequantize_rows(keys), dequantize_rows(values))
    keys, values, table = cut_into_pages(sequences(lengths, H, D, dtype), page_size)
    return keys, values, table, (keys, values)


@pytest.mark.parametrize("window", [0, 1, 63, 64, 90, 128])
@pytest.mark.parametrize("page_size", [3, 64, 128])
@pytest.mark.parametrize("is_int8", [False, True], ids=["", "int8"])
@pytest.mark.parametrize("has_sinks", [False, True], ids=["", "sinks"])
def test_ragged_batch(instruction_set, dtype, page_size, window, is_int8, has_sinks):
    """Covers decoding, first and later prefill chunks, no new tokens, and freed pages."""
    keys, values, table, exact = pages_of(LENGTHS, page_size, 24, dtype, is_int8)
    query, lengths = random(ENDS[-1], 6, 24, dtype=dtype), mx.array(LENGTHS)
    sinks = random(6, scale=4) if has_sinks else None
    expected = paged_attention_varlen_reference(
        query.astype(mx.float32), *exact, mx.array(ENDS), lengths, padded(table), page_size, None,
        window, sinks,
    )  # fmt: skip
    options = None, window, sinks
    arrays = query, keys, values, mx.array(ENDS), lengths
    actual = kernels.paged_attention_varlen(*arrays, padded(table), *options)
    ulps = 32 if is_int8 or has_sinks else 16
    assert_close(actual, expected.astype(dtype), "compared with the reference", ulps)
    if window:
        *short, rows = free_pages_before_window(
            (keys, values), table, QUERY_LENS, LENGTHS, page_size, window
        )
        freed = kernels.paged_attention_varlen(query, *short, *arrays[3:], rows, *options)
        assert_same_bits(freed, actual, "with freed pages")
    for s, length in enumerate(LENGTHS):
        own = padded(table)[s : s + 1]
        bounds = mx.array([0, QUERY_LENS[s]])
        alone = kernels.paged_attention_varlen(
            query[ENDS[s] : ENDS[s + 1]], keys, values, bounds, lengths[s : s + 1], own, *options
        )
        assert_same_bits(alone, actual[ENDS[s] : ENDS[s + 1]], f"sequence {s} alone")
        for token in range(ENDS[s], ENDS[s + 1], 13):  # alone, with only its visible keys
            visible = mx.array([length - (ENDS[s + 1] - 1 - token)])
            one = query[token][None, :, None]
            alone = kernels.paged_attention(
                one, keys, values, own, visible, None, window=window, sinks=sinks
            )
            assert_same_bits(actual[token], alone[0, :, 0], f"token {token} of sequence {s}")


@pytest.mark.parametrize("D", [1, 7, 64, 80, 128, 256, 511, 512])
@pytest.mark.parametrize("group", [1, 4, 150])
@pytest.mark.parametrize("mask", ["causal", None, "window"])
@pytest.mark.parametrize("is_int8", [False, True], ids=["", "int8"])
def test_head_sizes_and_groups(instruction_set, dtype, D, group, mask, is_int8):
    lengths, window = [170, 3, 129], 70 if mask == "window" else 0
    keys, values, table, exact = pages_of(lengths, 16, D, dtype, is_int8, H=1)
    query = random(3, group, 3, D, dtype=dtype)
    rest = padded(table), mx.array(lengths), 16, None, mask and "causal", window
    actual = paged_attention(query, keys, values, *rest)
    assert actual.dtype == dtype
    expected = paged_attention_reference(query.astype(mx.float32), *exact, *rest)
    assert_close(actual, expected.astype(dtype), "compared with the reference", ulps=32)
    if is_int8:
        wider = (mx.pad(rows, [(0, 0)] * 3 + [(0, 4)]) for rows in (keys, values))
        assert_same_bits(paged_attention(query, *wider, *rest), actual, "padded rows")
    elif not window:
        for row, (length, pages) in enumerate(zip(lengths, table, strict=True)):
            k, v = (x[mx.array(pages), 0].reshape(1, -1, D)[:, :length] for x in (keys, values))
            assert_same_bits(actual[row], dense(query[row], k, v, mask=mask), f"row {row}")


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 150), min_size=0, max_size=4),
    query_lens=st.lists(st.integers(0, 70), min_size=4, max_size=4),
    H=st.integers(1, 3),
    group=st.integers(1, 3),
    D=st.integers(1, 48),
    page_size=st.integers(1, 70),
    scale=st.sampled_from([None, 0.0, 0.125, -1.0]),
    window=st.just(0) | st.integers(1, 160),
    dtype=st.sampled_from([mx.float32, mx.float16, mx.bfloat16]),
)
def test_random_ragged_batches(lengths, query_lens, H, group, D, page_size, scale, window, dtype):
    """Covers more queries than keys; early queries' outputs are zero."""
    lengths = [length or new for length, new in zip(lengths, query_lens, strict=False)]
    query_lens = query_lens[: len(lengths)]
    pairs = sequences(lengths, H, D, dtype) or sequences([0], H, D, dtype)
    keys, values, table = cut_into_pages(pairs, page_size)
    whole = padded(table, extra=1)[: len(lengths)]
    query = random(sum(query_lens), H * group, D, dtype=dtype)
    ends, lens = (mx.array(x, mx.int32) for x in (np.cumsum([0, *query_lens]), lengths))
    expected = paged_attention_varlen_reference(
        query, keys, values, ends, lens, whole, page_size, scale, window
    )
    *pages, rows = keys, values, whole
    if window and lengths:
        *pages, rows = free_pages_before_window(
            (keys, values), table, query_lens, lengths, page_size, window
        )
    actual = paged_attention_varlen(query, *pages, ends, lens, rows, page_size, scale, window)
    assert_close(actual, expected, "compared with gathered pages", ulps=16)


@pytest.mark.parametrize("window", [0, 5])
def test_reference_is_the_fallback_without_the_extension(monkeypatch, window):
    keys, values, [row] = cut_into_pages(sequences([19]), 4)
    table = [[-1, -1, -1, *row[3:]] if window else row]
    query = random(3, 4, 40)
    batch = query.swapaxes(0, 1)[None], keys, values

    def ragged(table, length, window):
        return paged_attention_varlen(query, *batch[1:], [0, 3], [length], table, 4, None, window)

    def batched(table, length, window):
        rest = mx.array(table), mx.array([length]), 4, None, "causal", window
        return paged_attention(*batch, *rest)[0].swapaxes(0, 1)

    by_kernel = ragged(table, 19, window)
    assert_same_bits(batched(table, 19, window), by_kernel, "batch")
    monkeypatch.setattr(kernels, "is_built", lambda: False)
    monkeypatch.setattr(kernels, "extension", None)
    for attend in (ragged, batched):
        assert_close(attend(table, 19, window), by_kernel, attend.__name__, ulps=16)
    wrong = [([row], 29, 0, "context_lens"), ([[0, 1, 99, 2, 3]], 19, 0, "page ids from 0 to")]
    if window:
        wrong = [(table, 19, window + 1, "page ids from 0 to")]
    for *arguments, message in wrong:
        for attend in (ragged, batched):
            with pytest.raises(ValueError, match=message):
                attend(*arguments)


def test_unowned_slots_are_not_read(instruction_set, dtype):
    """Unused slots are NaN; page ids beyond the context are arbitrary."""
    pairs = sequences([66], dtype=dtype)
    keys, values, [row] = cut_into_pages(pairs, 16)
    query = random(1, 4, 3, 40, dtype=dtype)
    expected = dense(query[0], *pairs[0])
    for beyond in ([-1], [999, -5], [row[0]]):
        actual = paged_attention(
            query, keys, values, mx.array([row + beyond]), mx.array([66]), 16, mask="causal"
        )
        assert_same_bits(actual[0], expected, f"table ends in {beyond}")


@pytest.mark.parametrize(("window", "indices"), [(0, (0, 2, 11)), (10, (9, 10, 11))])
def test_invalid_page_is_nan_in_its_sequence_only(instruction_set, dtype, window, indices):
    """With a window of 10, the first query's starts at key 79."""
    keys, values, table = cut_into_pages(sequences([20, 90, 40], dtype=dtype), 8)
    query = random(3, 4, 2, 40, dtype=dtype)
    rest = mx.array([20, 90, 40]), 8, None, "causal", window
    expected = paged_attention(query, keys, values, padded(table), *rest)
    assert np.isfinite(as_numpy(expected)).all()
    for index, bad in itertools.product(indices, (-1, len(keys), 2**31 - 1, -(2**31))):
        broken = [table[0], [*table[1][:index], bad, *table[1][index + 1 :]], table[2]]
        actual = paged_attention(query, keys, values, padded(broken), *rest)
        assert np.isnan(as_numpy(actual[1])).all()
        assert_same_bits(actual[::2], expected[::2], "other sequences")


@pytest.mark.parametrize("length", [33, 999, 2**31 - 1])
def test_context_beyond_the_block_table_is_nan_in_its_sequence_only(instruction_set, dtype, length):
    keys, values, table = cut_into_pages(sequences([32, 20], dtype=dtype), 8)
    tables, query = padded(table), random(2, 4, 2, 40, dtype=dtype)
    expected = paged_attention(query, keys, values, tables, mx.array([32, 20]), 8)
    actual = paged_attention(query, keys, values, tables, mx.array([length, 20]), 8)
    assert np.isfinite(as_numpy(expected)).all(), (
        "expected finite values: all 32 tokens are in the block table"
    )
    assert np.isnan(as_numpy(actual[0])).all()
    assert_same_bits(actual[1], expected[1], "other sequence")


def test_out_of_range_indices_stay_in_bounds(instruction_set):
    keys, values, table = cut_into_pages(sequences([20, 30]), 8)
    keys, values = mx.nan_to_num(keys), mx.nan_to_num(values)
    query = random(10, 4, 40)
    tables = padded(table)
    for ends in ([0, 99, 10], [5, 2, 10], [-7, 3, 400], [9, 9, 9], [10, 0, 0], [99, 99, 99]):
        for lengths in ([20, 30], [-3, 999], [2**31 - 1, -(2**31)]):
            out = paged_attention_varlen(
                query, keys, values, mx.array(ends), mx.array(lengths), tables, 8
            )
            first, last = max(0, min(ends[0], 10)), max(0, min(max(ends), 10))
            out = as_numpy(out)
            assert not out[:first].any(), "expected zeros for tokens outside all sequences"
            assert not out[last:].any()


def test_pages_and_result_are_not_copied():
    keys = mx.zeros((32, 2, 128, 64))  # 2 MB
    values = mx.zeros((32, 2, 128, 64))
    query, table = mx.zeros((1, 4, 5, 64)), mx.arange(32, dtype=mx.int32)[None]
    lengths = mx.array([4000])
    mx.eval(keys, values, query, table, lengths)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    out = paged_attention(query, keys, values, table, lengths, 128, mask="causal")
    flat = out.swapaxes(1, 2).reshape(1, 5, 256)
    mx.eval(flat)
    assert mx.get_peak_memory() - before < 100_000
    assert mx.get_active_memory() - before <= 3 * 5 * 256 * 4


def test_empty_inputs(dtype):
    pages = mx.zeros((3, 2, 8, 16), dtype)
    none = mx.zeros((0,), mx.int32)
    for shape in ((0, 4, 3, 16), (2, 4, 0, 16)):
        B = shape[0]
        table, lengths = mx.zeros((B, 1), mx.int32), mx.zeros((B,), mx.int32)
        out = paged_attention(mx.zeros(shape, dtype), pages, pages, table, lengths, 8)
        assert out.shape == shape
    query = mx.zeros((0, 4, 16), dtype)
    out = paged_attention_varlen(query, pages, pages, [0], none, mx.zeros((0, 1), mx.int32), 8)
    assert out.shape == (0, 4, 16)
    empty = mx.zeros((0, 2, 8, 16), dtype)
    query, table = mx.ones((1, 4, 3, 16), dtype), mx.zeros((1, 0), mx.int32)
    out = paged_attention(query, empty, empty, table, mx.array([0]), 8)
    assert not as_numpy(out).any(), "expected zeros for an empty block table"
    out = paged_attention(query, empty, empty, table, mx.array([5]), 8)
    assert np.isnan(as_numpy(out)).all(), "expected NaN for keys beyond the block table"


def test_mask_equals_transformers():
    masking, torch = map(pytest.importorskip, ("transformers.masking_utils", "torch"))
    for window in (1, 2, 5, 9, 100):
        sees = masking.sliding_window_causal_mask_function(window)
        for L, S in ((1, 1), (4, 9), (9, 9), (1, 30)):
            expected = sees(None, None, torch.arange(S - L, S)[:, None], torch.arange(S)[None])
            actual = sliding_window_mask(L, S, window, mx.float32)
            np.testing.assert_array_equal(as_numpy(actual) == 0, expected.numpy())


@pytest.mark.parametrize("window", [300, 301, 2**31 - 1])
def test_window_of_all_keys_is_bitwise_equal_to_none(instruction_set, dtype, window):
    keys, values, table = cut_into_pages(sequences(LENGTHS, D=24, dtype=dtype), 16)
    query = random(ENDS[-1], 6, 24, dtype=dtype)
    rest = query, keys, values, ENDS, mx.array(LENGTHS), padded(table), 16, None
    full = paged_attention_varlen(*rest)
    assert_same_bits(paged_attention_varlen(*rest, window), full, f"window of {window}")


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
