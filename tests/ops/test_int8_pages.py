"""8-bit KV pages: quantization, and attention over dequantized pages."""

import mlx.core as mx
import numpy as np
import pytest

from tests.paging import padded
from tests.support import (
    as_numpy,
    assert_close,
    assert_same_bits,
    random,
)
from tiny_llm import kernels, paged_attention, paged_attention_varlen
from tiny_llm.attention.paged import paged_attention_reference, paged_attention_varlen_reference
from tiny_llm.kv_storage.int8_rows import dequantize_rows, quantize_rows

PADDING = 99


def assert_same_rows(actual: mx.array, expected: mx.array) -> None:
    np.testing.assert_array_equal(np.array(actual), np.array(expected))


def write(tokens: mx.array, page_size: int, padding: int = 0) -> mx.array:
    """Quantizes S×H×D tokens to P×H×page_size×(D + 4) pages: int8, 4-byte scale, padding."""
    S, H, D = tokens.shape
    pages = mx.full((-(-S // page_size), H, page_size, D + 4 + padding), PADDING, dtype=mx.int8)
    return kernels.paged_cache_write(pages, tokens, mx.arange(S, dtype=mx.int32))


def int8_pages(lengths, page_size, H=2, D=40, dtype=mx.float32):
    """Keys, values and block table of random sequences with varied magnitudes."""
    table, pools = [], ([], [])
    for S in lengths:
        count = -(-S // page_size)
        table.append(list(range(sum(map(len, table)), sum(map(len, table)) + count)))
        for pool in pools:
            magnitudes = mx.exp(2 * random(S, H, 1)) if S else mx.zeros((0, H, 1))
            pool.append(write((random(S, H, D) * magnitudes).astype(dtype), page_size))
    return *(mx.concatenate(pool) for pool in pools), padded(table)


@pytest.mark.parametrize("D", [1, 7, 16, 80, 128, 256, 511])
def test_written_rows_are_bitwise_equal_to_reference(instruction_set, dtype, D):
    tokens = random(37, 3, D, dtype=dtype)
    tokens[5] = 0
    tokens[6] = tokens[6] * 1e-38
    assert_same_rows(write(tokens, 37)[0].swapaxes(0, 1), quantize_rows(tokens))
    rows = write(tokens, 37, padding=3)
    assert_same_rows(rows[0, ..., :-3].swapaxes(0, 1), quantize_rows(tokens))
    assert (rows[..., -3:] == PADDING).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_row_with_a_non_finite_element_is_nan(instruction_set, dtype, bad):
    tokens = random(2, 1, 20, dtype=dtype)
    tokens[0, 0, 17] = bad
    rows = write(tokens, 2)
    assert_same_rows(rows[0].swapaxes(0, 1), quantize_rows(tokens))
    assert np.isnan(as_numpy(dequantize_rows(rows)[0, 0, 0])).all()
    assert np.isfinite(as_numpy(dequantize_rows(rows)[0, 0, 1])).all()


def test_quantization_error_is_at_most_half_a_step():
    x = random(50, 2, 64)
    error = np.abs(as_numpy(dequantize_rows(quantize_rows(x)) - x))
    step = np.abs(as_numpy(x)).max(axis=-1, keepdims=True) / 127
    assert (error <= step * 0.5001).all()


def test_strided_tokens(instruction_set):
    tokens = random(20, 2, 12)
    for view in (mx.contiguous(tokens.T).T, mx.repeat(tokens, 2, axis=-1)[..., ::2]):
        assert_same_rows(write(view, 4), write(view + 0, 4))


@pytest.mark.parametrize("D", [1, 7, 64, 80, 128, 256, 511])
@pytest.mark.parametrize("group", [1, 4, 150])
@pytest.mark.parametrize("mask", ["causal", None])
def test_attention_equals_dequantized_pages(instruction_set, dtype, D, group, mask):
    lengths = [70, 3, 129]
    keys, values, table = int8_pages(lengths, 16, H=1, D=D, dtype=dtype)
    query = random(3, group, 3, D, dtype=dtype)
    arguments = table, mx.array(lengths), 16, D**-0.5, mask
    floats = dequantize_rows(keys), dequantize_rows(values)
    expected = paged_attention_reference(query.astype(mx.float32), *floats, *arguments)
    actual = paged_attention(query, keys, values, *arguments)
    assert actual.dtype == dtype
    assert_close(actual, expected.astype(dtype), "dequantized", ulps=32)
    wider = (mx.pad(rows, [(0, 0)] * 3 + [(0, 4)]) for rows in (keys, values))
    assert_same_bits(paged_attention(query, *wider, *arguments), actual, "padded rows")


@pytest.mark.parametrize("page_size", [3, 64, 128])
def test_ragged_batch_is_bitwise_equal_to_single_sequences(instruction_set, dtype, page_size):
    query_lens, lengths = [1, 50, 0, 1, 130, 7, 1], [200, 50, 33, 1, 150, 300, 128]
    keys, values, table = int8_pages(lengths, page_size, D=24, dtype=dtype)
    ends = np.cumsum([0, *query_lens]).tolist()
    query = random(ends[-1], 6, 24, dtype=dtype)
    arguments = query, keys, values, mx.array(ends), mx.array(lengths), table, page_size
    actual = paged_attention_varlen(*arguments)
    floats = dequantize_rows(keys), dequantize_rows(values)
    in_float32 = query.astype(mx.float32), *floats, *arguments[3:]
    expected = paged_attention_varlen_reference(*in_float32)
    assert_close(actual, expected.astype(dtype), "dequantized", ulps=32)
    for s, length in enumerate(lengths):
        # reference: each query alone, with only its visible keys
        for token in range(ends[s], ends[s + 1]):
            visible = length - (ends[s + 1] - 1 - token)
            own = query[token][None, :, None]
            alone = paged_attention(
                own, keys, values, table[s : s + 1], mx.array([visible]), page_size
            )
            assert_same_bits(actual[token], alone[0, :, 0], f"token {token} of sequence {s}")
            if token > ends[s] + 3:
                break
