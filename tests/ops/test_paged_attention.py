"""Batched and ragged paged attention: bitwise equal to flash attention."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.paging import cut_into_pages, padded, sequences
from tests.support import (
    as_numpy,
    assert_close,
    assert_same_bits,
    random,
)
from tiny_llm import flash_attention, kernels, paged_attention, paged_attention_varlen
from tiny_llm.attention.paged import paged_attention_reference, paged_attention_varlen_reference


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


@pytest.mark.parametrize("page_size", [3, 64, 128])
def test_ragged_batch_is_bitwise_equal_to_single_sequences(instruction_set, dtype, page_size):
    """Covers decoding, first and later prefill chunks, and no new tokens."""
    query_lens, lengths = [1, 50, 0, 1, 130, 7, 1], [200, 50, 33, 1, 150, 300, 128]
    pairs = sequences(lengths, H=2, D=24, dtype=dtype)
    keys, values, table = cut_into_pages(pairs, page_size)
    ends = np.cumsum([0, *query_lens]).tolist()
    query = random(ends[-1], 6, 24, dtype=dtype)
    actual = paged_attention_varlen(
        query, keys, values, mx.array(ends), mx.array(lengths), padded(table), page_size
    )
    for s, (k, v) in enumerate(pairs):
        own = slice(ends[s], ends[s + 1])
        expected = dense(query[own].swapaxes(0, 1), k, v).swapaxes(0, 1)
        assert_same_bits(actual[own], expected, f"{query_lens[s]} of {lengths[s]} tokens")


@pytest.mark.parametrize("D", [1, 7, 64, 128, 256, 512])
@pytest.mark.parametrize("group", [1, 4, 150])
def test_head_sizes_and_groups(instruction_set, dtype, D, group):
    pairs = sequences([70, 3], H=1, D=D, dtype=dtype)
    keys, values, table = cut_into_pages(pairs, 16)
    query = random(2, group, 3, D, dtype=dtype)
    actual = paged_attention(query, keys, values, table_of(table), [70, 3], 16, mask="causal")
    for row, (k, v) in enumerate(pairs):
        assert_same_bits(actual[row], dense(query[row], k, v), f"row {row}")


def table_of(table):
    return padded(table).tolist()


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 150), min_size=0, max_size=4),
    query_lens=st.lists(st.integers(0, 70), min_size=4, max_size=4),
    H=st.integers(1, 3),
    group=st.integers(1, 3),
    D=st.integers(1, 48),
    page_size=st.integers(1, 70),
    scale=st.sampled_from([None, 0.0, 0.125, -1.0]),
    dtype=st.sampled_from([mx.float32, mx.float16, mx.bfloat16]),
)
def test_random_ragged_batches_equal_the_reference(
    lengths, query_lens, H, group, D, page_size, scale, dtype
):
    lengths = [length or new for length, new in zip(lengths, query_lens, strict=False)]
    query_lens = query_lens[: len(lengths)]
    pairs = sequences(lengths, H, D, dtype) or sequences([0], H, D, dtype)
    keys, values, table = cut_into_pages(pairs, page_size)
    table = padded(table, extra=1)[: len(lengths)]
    ends = mx.array(np.cumsum([0, *query_lens]).astype(np.int32))
    query = random(sum(query_lens), H * group, D, dtype=dtype)
    arguments = (query, keys, values, ends, mx.array(lengths, mx.int32), table, page_size, scale)
    expected = paged_attention_varlen_reference(*arguments)
    assert_close(
        paged_attention_varlen(*arguments), expected, "compared with gathered pages", ulps=16
    )


@pytest.mark.parametrize("mask", ["causal", None])
def test_reference_equals_gather_and_attention(dtype, mask):
    lengths = [5, 0, 17]
    keys, values, table = cut_into_pages(sequences(lengths, dtype=dtype), 4)
    query = random(3, 4, 7, 40, dtype=dtype)
    arguments = (query, keys, values, padded(table), mx.array(lengths), 4, 0.3, mask)
    expected = paged_attention_reference(*arguments)
    assert_close(paged_attention(*arguments), expected, "kernel", ulps=16)
    assert not as_numpy(expected[1]).any(), "expected zeros for a sequence without keys"
    if mask == "causal":
        assert not as_numpy(expected[0, :, :2]).any(), (
            "expected zeros for queries before the first key"
        )


def test_reference_is_the_fallback_without_the_extension(monkeypatch):
    keys, values, table = cut_into_pages(sequences([9]), 4)
    query = random(3, 4, 40)
    by_kernel = paged_attention_varlen(query, keys, values, [0, 3], [9], table, 4)
    batch = paged_attention(query.swapaxes(0, 1)[None], keys, values, table, [9], 4)
    monkeypatch.setattr(kernels, "is_built", lambda: False)
    monkeypatch.setattr(kernels, "extension", None)
    plain = paged_attention_varlen(query, keys, values, [0, 3], [9], table, 4)
    assert_close(plain, by_kernel, "ragged", ulps=16)
    plain = paged_attention(query.swapaxes(0, 1)[None], keys, values, table, [9], 4)
    assert_close(plain, batch, "batch", ulps=16)
    for length, pages, message in ((13, table, "context_lens"), (9, [[0, 1, 99]], "page ids")):
        with pytest.raises(ValueError, match=message):
            paged_attention(
                query.swapaxes(0, 1)[None], keys, values, mx.array(pages), mx.array([length]), 4
            )


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


def test_invalid_page_is_nan_in_its_sequence_only(instruction_set, dtype):
    keys, values, table = cut_into_pages(sequences([20, 30, 40], dtype=dtype), 8)
    query = random(3, 4, 2, 40, dtype=dtype)
    arguments = (mx.array([20, 30, 40]), 8, None, "causal")
    expected = paged_attention(query, keys, values, padded(table), *arguments)
    for bad in (-1, len(keys), 2**31 - 1, -(2**31)):
        broken = [table[0], [*table[1][:2], bad, table[1][3]], table[2]]
        actual = paged_attention(query, keys, values, padded(broken), *arguments)
        assert np.isnan(as_numpy(actual[1])).all()
        assert_same_bits(actual[0], expected[0], "preceding sequence")
        assert_same_bits(actual[2], expected[2], "following sequence")


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


@pytest.mark.parametrize("which", ["query", "key_pages", "value_pages", "table", "lengths"])
def test_any_strides_are_bitwise_equal(instruction_set, dtype, which):
    lengths = [40, 70]
    keys, values, table = cut_into_pages(sequences(lengths, dtype=dtype), 16)
    arrays = {
        "query": random(2, 4, 3, 40, dtype=dtype),
        "key_pages": keys,
        "value_pages": values,
        "table": padded(table),
        "lengths": mx.array(lengths),
    }
    expected = paged_attention(*arrays.values(), 16, mask="causal")
    x = arrays[which]
    views = {
        "transposed": mx.contiguous(x.T).T,
        "strided": mx.repeat(x, 2, axis=-1)[..., ::2],
        "backwards": mx.contiguous(x[::-1])[::-1],
        "inside": mx.concatenate([x, x, x])[len(x) : 2 * len(x)],
    }
    for name, view in views.items():
        actual = paged_attention(*{**arrays, which: view}.values(), 16, mask="causal")
        assert_same_bits(actual, expected, name)


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
