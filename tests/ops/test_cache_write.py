"""`cache_write`: positions written, donation of unshared buffers."""

import mlx.core as mx
import pytest

from tests.support import assert_same_bits, random
from tiny_llm import kernels

DTYPES = [mx.bool_, mx.uint8, mx.float16, mx.bfloat16, mx.float32, mx.int64]


def list_or_array(offsets, kind):
    return offsets if kind == "list" else mx.array(offsets, dtype=mx.int32)


@pytest.mark.parametrize("kind", ["list", "array"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tokens_are_written_at_their_offsets(dtype, kind):
    buffer = (random(4, 3, 9, 5) * 20).astype(dtype)
    # transposed views, as a layer passes them
    tokens = (random(4, 2, 3, 5) * 20).astype(dtype).swapaxes(1, 2)
    out = kernels.cache_write(buffer, tokens, list_or_array([0, 7, -1, 4], kind))
    for b, offset in ((0, 0), (1, 7), (3, 4)):
        expected = [buffer[b, :, :offset], tokens[b], buffer[b, :, offset + 2 :]]
        assert mx.array_equal(out[b], mx.concatenate(expected, axis=1)), (
            f"sequence {b}: expected only the tokens from {offset} on to be overwritten"
        )
    assert mx.array_equal(out[2], buffer[2]), "expected no write for offset −1"


def test_out_of_range_array_offsets_write_nothing():
    buffer, tokens = random(6, 2, 9, 5), random(6, 2, 2, 5)
    offsets = mx.array([-2, 8, 9, 2**31 - 1, -(2**31), 7], dtype=mx.int32)
    out = kernels.cache_write(buffer, tokens, offsets)
    assert_same_bits(out[:5], buffer[:5], "out-of-range offsets")
    assert_same_bits(out[5, :, 7:], tokens[5], "last valid offset")


def test_array_offsets_of_any_layout():
    buffer, tokens = random(3, 2, 9, 5), random(3, 2, 1, 5)
    wide = mx.arange(6, dtype=mx.int32) + 2
    expected = kernels.cache_write(buffer, tokens, [2, 4, 6])
    assert_same_bits(kernels.cache_write(buffer, tokens, wide[::2]), expected, "strided offsets")


@pytest.mark.parametrize("kind", ["list", "array"])
def test_unshared_buffer_is_written_in_place(kind):
    buffer, tokens = random(1, 8, 1000, 64), random(1, 8, 1, 64)
    mx.eval(buffer, tokens)
    for offset in (0, 999, 500):
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        buffer = kernels.cache_write(buffer, tokens, list_or_array([offset], kind))
        mx.eval(buffer)
        copied = mx.get_peak_memory() - before
        assert copied < 10_000, f"copied {copied} bytes instead of a token"
    old_buffer = buffer
    buffer = kernels.cache_write(buffer, mx.zeros_like(tokens), list_or_array([500], kind))
    assert_same_bits(buffer[:, :, 500:501], mx.zeros_like(tokens), "new buffer")
    assert_same_bits(old_buffer[:, :, 500:501], tokens, "old buffer")
