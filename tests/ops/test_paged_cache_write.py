"""`paged_cache_write`: writes to slots without copying the pool."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import as_numpy, random
from tiny_llm import kernels


def expected(pages: mx.array, tokens: mx.array, slots: list[int]) -> np.ndarray:
    """Reference: writes T×H×D token by token."""
    out, size = as_numpy(pages).copy(), pages.shape[2]
    for token, slot in zip(as_numpy(tokens), slots, strict=True):
        if 0 <= slot < len(out) * size:
            out[slot // size, :, slot % size] = token
    return out


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_tokens_are_written_to_their_slots(dtype, page_size):
    pages = random(7, 2, page_size, 24, dtype=dtype)
    places = 7 * page_size
    slots = np.random.default_rng(0).permutation(places)[: places // 2].tolist()
    slots[::3] = [-1] * len(slots[::3])
    tokens = random(len(slots), 2, 24, dtype=dtype)
    out = kernels.paged_cache_write(pages, tokens, mx.array(slots, dtype=mx.int32))
    np.testing.assert_array_equal(as_numpy(out), expected(pages, tokens, slots))


def test_batch_equals_flattened_tokens(dtype):
    pages, tokens = random(5, 2, 4, 8, dtype=dtype), random(3, 2, 4, 8, dtype=dtype)  # B×H×L×D
    slots = mx.array([[0, 1, 2, 3], [-1] * 4, [18, 7, 12, 5]])
    flat = tokens.swapaxes(1, 2).reshape(12, 2, 8)
    out = kernels.paged_cache_write(pages, tokens, slots)
    np.testing.assert_array_equal(as_numpy(out), expected(pages, flat, slots.reshape(-1).tolist()))


def test_many_tokens_on_many_threads():
    pages, tokens = random(40, 4, 16, 64), random(640, 4, 64)
    slots = np.random.default_rng(1).permutation(640).tolist()
    out = kernels.paged_cache_write(pages, tokens, mx.array(slots, dtype=mx.int32))
    np.testing.assert_array_equal(as_numpy(out), expected(pages, tokens, slots))


@pytest.mark.parametrize("which", ["pages", "tokens", "slots"])
def test_any_strides(dtype, which):
    arrays = {
        "pages": random(5, 2, 4, 8, dtype=dtype),
        "tokens": random(6, 2, 8, dtype=dtype),
        "slots": mx.array([3, 19, -1, 0, 7, 8]),
    }
    right = expected(arrays["pages"], arrays["tokens"], arrays["slots"].tolist())
    x = arrays[which]
    for view in (
        mx.contiguous(x.T).T,
        mx.repeat(x, 2, axis=-1)[..., ::2],
        mx.contiguous(x[::-1])[::-1],
        mx.concatenate([x, x, x])[len(x) : 2 * len(x)],
    ):
        out = kernels.paged_cache_write(**{**arrays, which: view})
        np.testing.assert_array_equal(as_numpy(out), right)


def test_slots_beyond_the_pages_write_nothing(dtype):
    pages, tokens = random(3, 2, 4, 8, dtype=dtype), random(5, 2, 8, dtype=dtype)
    slots = mx.array([-2, 12, 2**31 - 1, -(2**31), 99])
    out = kernels.paged_cache_write(pages, tokens, slots)
    np.testing.assert_array_equal(as_numpy(out), as_numpy(pages))


def test_donated_pool_is_not_copied():
    pages = mx.zeros((64, 2, 64, 64))  # 2 MB
    token, slot = mx.ones((1, 2, 64)), mx.array([77])
    mx.eval(pages, token, slot)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for _ in range(3):  # each evaluation contains two lazy writes
        pages = kernels.paged_cache_write(pages, token, slot)
        pages = kernels.paged_cache_write(pages, token, slot)
        mx.eval(pages)
    assert mx.get_peak_memory() - before < 100_000
    assert pages[1, :, 13].tolist() == [[1.0] * 64] * 2


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


def test_shared_pool_is_unchanged():
    old = random(3, 2, 4, 8)
    copy = as_numpy(old).copy()
    new = kernels.paged_cache_write(old, mx.ones((1, 2, 8)), mx.array([5]))
    mx.eval(new)
    np.testing.assert_array_equal(as_numpy(old), copy)
    assert new[1, :, 1].tolist() == [[1.0] * 8] * 2


def test_empty_inputs(dtype):
    pages = random(3, 2, 4, 8, dtype=dtype)
    out = kernels.paged_cache_write(pages, mx.zeros((0, 2, 8), dtype), mx.zeros((0,), mx.int32))
    np.testing.assert_array_equal(as_numpy(out), as_numpy(pages))
    empty = mx.zeros((0, 2, 4, 8), dtype)
    out = kernels.paged_cache_write(empty, mx.zeros((1, 2, 8), dtype), mx.array([0]))
    assert out.shape == (0, 2, 4, 8)
