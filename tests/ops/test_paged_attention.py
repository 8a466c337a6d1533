"""Paged attention: references, windows, 8-bit pages, sinks, invalid pages."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

from tests.paging import (
    cut_into_pages,
    free_pages_before_window,
    int8_pages,
    padded,
    sequences,
    write_int8,
)
from tests.support import as_numpy, assert_close, assert_same_bits, random
from tiny_llm import flash_attention, kernels, paged_attention, paged_attention_varlen
from tiny_llm.attention.paged import paged_attention_reference, paged_attention_varlen_reference
from tiny_llm.kv_storage.int8_rows import dequantize_rows, quantize_rows


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


@pytest.mark.parametrize(("window", "indices"), [(0, (0, 2, 11)), (10, (9, 10, 11))])
def test_invalid_page_or_length_is_nan_in_its_sequence_only(
    instruction_set, dtype, window, indices
):
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
    for length in (97, 999, 2**31 - 1):  # the block table has 96 tokens
        actual = paged_attention(
            query, keys, values, padded(table), mx.array([20, length, 40]), *rest[1:]
        )
        assert np.isnan(as_numpy(actual[1])).all()
        assert_same_bits(actual[::2], expected[::2], "other sequences")


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


def test_no_pages(dtype):
    empty = mx.zeros((0, 2, 8, 16), dtype)
    query, table = mx.ones((1, 4, 3, 16), dtype), mx.zeros((1, 0), mx.int32)
    out = paged_attention(query, empty, empty, table, mx.array([0]), 8)
    assert not as_numpy(out).any(), "expected zeros for an empty block table"
    out = paged_attention(query, empty, empty, table, mx.array([5]), 8)
    assert np.isnan(as_numpy(out)).all(), "expected NaN for keys beyond the block table"


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


def assert_same_rows(actual: mx.array, expected: mx.array) -> None:
    np.testing.assert_array_equal(np.array(actual), np.array(expected))


@pytest.mark.parametrize("D", [1, 7, 16, 80, 128, 256, 511])
def test_written_int8_rows_are_bitwise_equal_to_reference(instruction_set, dtype, D):
    tokens = random(37, 3, D, dtype=dtype)
    tokens[5] = 0
    tokens[6] = tokens[6] * 1e-38
    assert_same_rows(write_int8(tokens, 37)[0].swapaxes(0, 1), quantize_rows(tokens))
    rows = write_int8(tokens, 37, padding=3, fill=99)
    assert_same_rows(rows[0, ..., :-3].swapaxes(0, 1), quantize_rows(tokens))
    assert (rows[..., -3:] == 99).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_int8_row_with_a_non_finite_element_is_nan(instruction_set, dtype, bad):
    tokens = random(2, 1, 20, dtype=dtype)
    tokens[0, 0, 17] = bad
    rows = write_int8(tokens, 2)
    assert_same_rows(rows[0].swapaxes(0, 1), quantize_rows(tokens))
    assert np.isnan(as_numpy(dequantize_rows(rows)[0, 0, 0])).all()
    assert np.isfinite(as_numpy(dequantize_rows(rows)[0, 0, 1])).all()


def test_strided_int8_tokens(instruction_set):
    tokens = random(20, 2, 12)
    for view in (mx.contiguous(tokens.T).T, mx.repeat(tokens, 2, axis=-1)[..., ::2]):
        assert_same_rows(write_int8(view, 4), write_int8(view + 0, 4))
