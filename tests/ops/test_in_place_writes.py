"""In-place writes to caches and states: places, copies of shared buffers."""

import mlx.core as mx
import numpy as np
import pytest

from tests.ops.recurrent_problems import Batch, conv_problem, delta_problem
from tests.support import as_numpy, assert_same_bits, random
from tiny_llm import kernels

ANY_DTYPE = [mx.bool_, mx.uint8, mx.float16, mx.bfloat16, mx.float32, mx.int64]
ONE_TOKEN = Batch((1,), (7,), (7,))
CONV = conv_problem(4, 4096, ONE_TOKEN, mx.float32)
DELTA = delta_problem(1, 4, 32, 128, ONE_TOKEN, mx.float32)
DELTA |= {"num_k_heads": 1}

# Buffers of 2 MB or more, and a write of one token to a buffer.
WRITES = {
    "cache_write, list": (
        (1, 8, 1000, 64),
        lambda buffer: kernels.cache_write(buffer, mx.ones((1, 8, 1, 64)), [999]),
    ),
    "cache_write, array": (
        (1, 8, 1000, 64),
        lambda buffer: kernels.cache_write(buffer, mx.ones((1, 8, 1, 64)), mx.array([500])),
    ),
    "paged_cache_write": (
        (64, 2, 64, 64),
        lambda pages: kernels.paged_cache_write(pages, mx.ones((1, 2, 64)), mx.array([77])),
    ),
    "causal_conv1d": (
        (64, 3, 4096),
        lambda states: kernels.causal_conv1d(**CONV | {"conv_states": states})[1],
    ),
    "gated_delta_rule": (
        (64, 4, 32, 128),
        lambda states: kernels.gated_delta_rule(**DELTA | {"states": states})[1],
    ),
}


@pytest.mark.parametrize("kernel", WRITES)
def test_unshared_buffer_is_written_in_place(on_cpu, kernel):
    shape, write = WRITES[kernel]
    buffer = mx.zeros(shape)
    mx.eval(buffer, CONV, [x for x in DELTA.values() if isinstance(x, mx.array)])
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for _ in range(3):  # each evaluation contains two lazy writes
        buffer = write(write(buffer))
        mx.eval(buffer)
    copied = mx.get_peak_memory() - before
    assert copied < 200_000, f"copied {copied} bytes instead of a token"
    assert mx.any(buffer).item()


@pytest.mark.parametrize("kernel", WRITES)
def test_shared_buffer_is_unchanged(instruction_set, kernel):
    shape, write = WRITES[kernel]
    old = random(*shape)
    copy = as_numpy(old).copy()
    new = write(old)
    mx.eval(new)
    np.testing.assert_array_equal(as_numpy(old), copy)
    assert not mx.array_equal(new, old)


@pytest.mark.parametrize("is_list", [True, False], ids=["list", "array"])
@pytest.mark.parametrize("dtype", ANY_DTYPE, ids=str)
def test_tokens_are_written_at_their_offsets(dtype, is_list):
    buffer = (random(4, 3, 9, 5) * 20).astype(dtype)
    # transposed views, as a layer passes them
    tokens = (random(4, 2, 3, 5) * 20).astype(dtype).swapaxes(1, 2)
    offsets = [0, 7, -1, 4]
    out = kernels.cache_write(buffer, tokens, offsets if is_list else mx.array(offsets))
    for b, offset in ((0, 0), (1, 7), (3, 4)):
        expected = [buffer[b, :, :offset], tokens[b], buffer[b, :, offset + 2 :]]
        assert mx.array_equal(out[b], mx.concatenate(expected, axis=1)), (
            f"sequence {b}: expected only the tokens from {offset} on to be overwritten"
        )
    assert mx.array_equal(out[2], buffer[2]), "expected no write for offset −1"


def test_paged_batch_equals_flattened_tokens(dtype):
    pages, tokens = random(5, 2, 4, 8, dtype=dtype), random(3, 2, 4, 8, dtype=dtype)  # B×H×L×D
    slots = mx.array([[0, 1, 2, 3], [-1] * 4, [18, 7, 12, 5]])
    flat = tokens.swapaxes(1, 2).reshape(12, 2, 8)
    expected = kernels.paged_cache_write(pages, flat, slots.reshape(-1))
    assert_same_bits(kernels.paged_cache_write(pages, tokens, slots), expected, "a batch")


def test_many_paged_tokens_on_many_threads():
    pages, tokens = random(40, 4, 16, 64), random(640, 4, 64)
    slots = np.random.default_rng(1).permutation(640)
    out = kernels.paged_cache_write(pages, tokens, mx.array(slots, dtype=mx.int32))
    written = as_numpy(out).swapaxes(1, 2).reshape(640, 4, 64)[slots]
    np.testing.assert_array_equal(written, as_numpy(tokens))


def test_views_of_a_pool_are_written_in_place(dtype):
    """Layers with rows of different sizes write different pages of one pool."""
    pool = mx.zeros((4, 128), dtype)
    views = [pool.reshape(4, 2, 8, 8), pool.reshape(4, 1, 4, 32)]
    mx.eval(views)
    for page, (index, shape) in enumerate(((0, (2, 2, 8)), (1, (2, 1, 32)), (0, (2, 2, 8)))):
        slots = mx.arange(2, dtype=mx.int32) + page * views[index].shape[2]
        tokens = random(*shape, dtype=dtype)
        views[index] = kernels.paged_cache_write(views[index], tokens, slots, overwrite=True)
        mx.eval(views)
    first, second = (as_numpy(view).reshape(4, 128) for view in views)
    np.testing.assert_array_equal(first, second)
    assert [bool(row.any()) for row in first] == [True, True, True, False]
