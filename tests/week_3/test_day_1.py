"""Week 3, day 1: the paged KV cache."""

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.paging import ShadowedCache, check_integrity
from tests.support import assert_equal, assert_same_bits, random, tiny_model
from tiny_llm import (
    OutOfPagesError,
    Qwen3ModelWeek2,
    Qwen3ModelWeek3,
    TinyKvFullCache,
    TinyKvPagedCache,
    TinyKvPagedPool,
)
from tiny_llm.attention import gather_pages

IDS = [3, 17, 130, 0, 3, 99, 5, 41, 8, 77, 2]


def test_task_1_allocate_and_free():
    pool = TinyKvPagedPool()
    assert pool.page_size == 128
    assert (pool.num_pages, pool.num_free_pages) == (0, 0)
    pages = [pool.allocate_page() for _ in range(5)]
    assert len(set(pages)) == 5, "expected distinct pages"
    assert (pool.num_pages, pool.num_free_pages) == (5, 0)
    pool.free_page(pages[3])
    assert (pool.num_pages, pool.num_free_pages) == (5, 1)
    assert pool.allocate_page() == pages[3], "free pages must be reused before new ones"
    assert pool.num_pages == 5
    pool = TinyKvPagedPool(page_size=4)
    page = pool.allocate_page()
    pool.free_page(page)
    with pytest.raises(ValueError, match=f"cannot free page {page}; it is free"):
        pool.free_page(page)
    assert pool.num_free_pages == 1, "the page must not be in the free list twice"
    for unknown in (-1, 1, 99):
        with pytest.raises(ValueError, match=f"cannot free page {unknown}; the pool has 1"):
            pool.free_page(unknown)


def test_task_1_pages_of_a_bounded_pool():
    pool = TinyKvPagedPool(page_size=4, capacity=3)
    assert (pool.num_pages, pool.num_free_pages) == (3, 3)
    assert sorted([pool.allocate_page() for _ in range(3)]) == [0, 1, 2]
    with pytest.raises(OutOfPagesError, match="3 pages"):
        pool.allocate_page()
    pool.free_page(1)
    assert pool.allocate_page() == 1
    for page in (1, 0, 2):
        pool.free_page(page)
    assert [pool.allocate_page() for _ in range(3)] == [2, 0, 1], "the page freed last comes first"
    pool = TinyKvPagedPool(page_size=4, capacity=3)
    token = mx.ones((1, 2, 1, 8))
    pool.write_page_slice(pool.allocate_page(), 0, token, token)
    assert pool.key_pages.shape == pool.value_pages.shape == (3, 2, 4, 8)


def test_task_1_memory_grows_by_half():
    pool, token = TinyKvPagedPool(page_size=1), mx.ones((1, 1, 1, 64))
    before = mx.get_active_memory()
    for _ in range(1000):
        pool.allocate_page()
    pool.ensure_capacity(token)
    pool.allocate_page()
    pool.ensure_capacity(token)
    held = mx.get_active_memory() - before
    assert len(pool.key_pages) == len(pool.value_pages) == 1500, (
        f"page 1,001: expected growth by half, to 1,500, got {len(pool.key_pages)}"
    )
    size = pool.key_pages.nbytes + pool.value_pages.nbytes
    assert 0.9 * size < held < 1.1 * size, (
        f"expected {size} bytes in use, those of the grown arrays, got {held}: evaluate them, so "
        "that the old ones are freed"
    )


@pytest.mark.parametrize("page_size", [1, 4, 128])
def test_task_1_write_and_read(device, dtype, page_size):
    pool = TinyKvPagedPool(page_size)
    pages = [pool.allocate_page() for _ in range(3)]
    expected = {}
    for page in pages:
        key, value = (random(1, 2, page_size, 8, dtype=dtype) for _ in range(2))
        half = page_size // 2
        pool.write_page_slice(page, 0, key[:, :, :half], value[:, :, :half])
        pool.write_page_slice(page, half, key[:, :, half:], value[:, :, half:])
        expected[page] = key, value
    for page, (key, value) in expected.items():
        assert_same_bits(pool.read_page(page)[0], key, f"keys of page {page}")
        assert_same_bits(pool.read_page(page)[1], value, f"values of page {page}")
    assert pool.key_pages.shape[1:] == (2, page_size, 8)
    assert pool.key_pages.shape[0] >= 3


def test_task_1_partial_writes_and_growth():
    pool = TinyKvPagedPool(page_size=6)
    page = pool.allocate_page()
    key, value, new = (random(1, 2, n, 8) for n in (6, 6, 2))
    pool.write_page_slice(page, 0, key, value)
    pool.write_page_slice(page, 3, new, new)
    expected = mx.concatenate([key[:, :, :3], new, key[:, :, 5:]], axis=2)
    assert_same_bits(pool.read_page(page)[0], expected, "slots 3 and 4")
    pool, sizes = TinyKvPagedPool(page_size=2), set()
    tokens = random(300, 2, 2, 8)
    for number in range(300):
        page = pool.allocate_page()
        pool.write_page_slice(page, 0, tokens[number][None], tokens[number][None])
        sizes.add(pool.key_pages.shape[0])
    assert len(sizes) <= 10, "memory must grow in steps, not with every page"
    for number in (0, 15, 16, 200, 299):
        for part, what in enumerate(("keys", "values")):
            same = pool.read_page(number)[part]
            assert_same_bits(same, tokens[number][None], f"{what} of page {number}")


def test_task_1_writing_a_token_does_not_copy_the_pool():
    pool = TinyKvPagedPool(page_size=64, capacity=64)  # 2 MB of keys and 2 MB of values
    page, token = pool.allocate_page(), mx.ones((1, 2, 1, 64))
    pool.write_page_slice(page, 0, token, token)
    mx.eval(pool.state, token)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for start in range(1, 5):
        pool.write_page_slice(page, start, token, token)
        mx.eval(pool.state)
    copied = mx.get_peak_memory() - before
    assert copied < 100_000, f"copied {copied / 1e6:.1f} MB instead of one token"
    assert pool.key_pages.shape == (64, 2, 64, 64)


def test_task_1_writes_are_ordered_after_reads_of_previous_layer():
    """Writes wait for the previous layer's reads, which are slow in this test."""
    pool = TinyKvPagedPool(page_size=16, capacity=1024)
    page = pool.allocate_page()
    token = mx.ones((1, 2, 1, 64))
    pool.write_page_slice(page, 0, token, token)
    mx.eval(pool.state)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    for slot in range(1, 4):
        # Sums that are slow to compute, but need no extra memory.
        zeros = [mx.broadcast_to(mx.zeros(1), (1 << 25,)).sum() for _ in range(2)]
        key = zeros[0] + pool.key_pages[page, :, slot - 1 : slot][None] + 1  # B×H×1×D
        value = zeros[1] + pool.value_pages[page, :, slot - 1 : slot][None] + 1
        pool.write_page_slice(page, slot, key, value)
    mx.eval(pool.state)
    copied = mx.get_peak_memory() - before
    hint = "`write` must evaluate the new tokens first: they depend on pending reads"
    assert copied < 100_000, f"copied {copied / 1e6:.1f} MB instead of the tokens; {hint}"
    assert pool.read_page(page)[0][0, 0, :4, 0].tolist() == [1, 2, 3, 4]


def test_task_1_misuse_is_rejected():
    for arguments, message in (
        ((0,), "page_size must be at least 1, got 0"),
        ((4, 0), "capacity must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            TinyKvPagedPool(*arguments)
    pool = TinyKvPagedPool(page_size=4)
    page, other = pool.allocate_page(), pool.allocate_page()
    pool.free_page(other)
    token = mx.zeros((1, 2, 1, 8))
    half, head = token.astype(mx.float16), token[:, :1]
    with pytest.raises(ValueError, match="before the first write"):
        pool.read_page(page)
    pool.write_page_slice(page, 0, token, token)
    with pytest.raises(ValueError, match=f"cannot read page {other}; it is free"):
        pool.read_page(other)
    for arguments, message in (
        ((other, 0, token, token), "cannot write to page 1; it is"),
        ((page, 4, token, token), "do not fit into one page of 4"),
        ((page, -1, token, token), "do not fit into one page of 4"),
        ((page, 0, token, head), "must have the same shape"),
        ((page, 0, head, head), "match the pages .2 heads of"),
        ((page, 0, half, half), "heads of size 8, mlx.core.float32"),
    ):
        with pytest.raises(ValueError, match=message):
            pool.write_page_slice(*arguments)


@pytest.mark.parametrize("page_size", [1, 3, 4, 128])
@pytest.mark.parametrize("chunks", [[1], [5], [1] * 9, [4, 4, 1], [7, 1, 128, 1]])
def test_task_2_returns_written_tokens(device, dtype, page_size, chunks):
    pool = TinyKvPagedPool(page_size)
    shadowed = ShadowedCache(pool, dtype=dtype)
    for length in chunks:
        shadowed.append(length)
        check_integrity(pool, [shadowed])


def test_task_2_decoding_allocates_only_on_page_overflow():
    pool = TinyKvPagedPool(page_size=4)
    shadowed = ShadowedCache(pool)
    shadowed.append(2)
    for step in range(12):
        before = pool.num_pages - pool.num_free_pages
        was_full = shadowed.cache.offset % 4 == 0
        shadowed.append(1)
        assert pool.num_pages - pool.num_free_pages == before + was_full, f"step {step}"


@pytest.mark.parametrize(("n", "pages"), [(0, 3), (1, 3), (2, 2), (5, 2), (6, 1), (9, 1), (10, 0)])
def test_task_2_rewinding_frees_whole_pages(n, pages):
    pool = TinyKvPagedPool(page_size=4)
    shadowed = ShadowedCache(pool)
    shadowed.append(10)
    shadowed.rewind(n)
    assert shadowed.cache.num_pages == pages
    check_integrity(pool, [shadowed])
    shadowed.append(3)
    check_integrity(pool, [shadowed])


def test_task_2_release_returns_every_page_once():
    pool = TinyKvPagedPool(page_size=4)
    shadowed_caches = [ShadowedCache(pool), ShadowedCache(pool)]
    for shadowed in shadowed_caches:
        shadowed.append(9)
    shadowed_caches[0].cache.release()
    assert (shadowed_caches[0].cache.offset, shadowed_caches[0].cache.page_ids) == (0, [])
    assert pool.num_free_pages == 3
    shadowed_caches[0].cache.release()
    assert pool.num_free_pages == 3, "a second release must be a no-op"
    check_integrity(pool, shadowed_caches[1:])


def test_task_2_misuse_is_rejected_without_side_effects():
    pool = TinyKvPagedPool(page_size=4, capacity=2)
    shadowed = ShadowedCache(pool)
    shadowed.append(3)
    row, head, two = (mx.zeros((B, H, 1, 8)) for B, H in ((1, 2), (1, 1), (2, 2)))
    cache, error = shadowed.cache, (ValueError, OutOfPagesError)
    for function, arguments, message in (
        (cache.rewind, (4,), "cannot rewind by 4 tokens; it has 3"),
        (cache.rewind, (-1,), "cannot rewind by -1 tokens; it has 3"),
        (cache.append, (row, head), "must have the same shape"),
        (cache.append, (head, head), "2 heads of size 8"),
        (cache.append, (two, two), "must have 1 sequence, got 2"),
        (cache.update_and_fetch_paged, (row, row, None, head), "does not support array masks"),
        (cache.append, shadowed.new_tokens(6), "all 2 pages"),
    ):
        with pytest.raises(error, match=message) as caught:
            function(*arguments)
        assert (caught.type is OutOfPagesError) == (message == "all 2 pages")
        check_integrity(pool, [shadowed])
    shadowed.append(5)
    check_integrity(pool, [shadowed])


def test_task_2_failed_reservation_keeps_the_order_of_the_free_pages():
    pool = TinyKvPagedPool(page_size=4, capacity=3)
    with pytest.raises(OutOfPagesError):
        TinyKvPagedCache(pool).reserve(13)
    pages = [pool.allocate_page() for _ in range(3)]
    assert pages == [0, 1, 2], f"expected the free pages as before, [0, 1, 2], got {pages}"


@settings(max_examples=60, deadline=None, report_multiple_bugs=False)
@given(
    page_size=st.integers(1, 5),
    capacity=st.sampled_from([None, 4, 12]),
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from("aaarx"), st.integers(0, 7)), max_size=25
    ),
)
def test_task_2_random_operations_keep_the_invariants(page_size, capacity, steps):
    pool = TinyKvPagedPool(page_size, capacity)
    shadowed_caches = [ShadowedCache(pool, H=1, D=2) for _ in range(3)]
    for index, action, n in steps:
        shadowed = shadowed_caches[index]
        if action == "a" and n:
            needed = -(-(shadowed.cache.offset + n) // page_size) - shadowed.cache.num_pages
            if capacity is not None and needed > pool.num_free_pages:
                with pytest.raises(OutOfPagesError):
                    shadowed.append(n)
            else:
                shadowed.append(n)
        elif action == "r":
            shadowed.rewind(min(n, shadowed.cache.offset))
        elif action == "x":
            shadowed.rewind(shadowed.cache.offset)
        check_integrity(pool, shadowed_caches)
    for shadowed in shadowed_caches:
        shadowed.cache.release()
    assert pool.num_free_pages == pool.num_pages


@pytest.mark.parametrize("page_size", [1, 3, 4, 128])
@pytest.mark.parametrize("chunks", [[1], [5], [4, 4, 1], [7, 1, 128, 1]])
def test_task_3_dense_gather_equals_full_cache(device, dtype, page_size, chunks):
    pool, full = TinyKvPagedPool(page_size), TinyKvFullCache()
    first, second = TinyKvPagedCache(pool), TinyKvPagedCache(pool)
    for page in [pool.allocate_page() for _ in range(9)]:
        pool.free_page(page)  # from now on, later pages have lower numbers
    assert second.gather_dense() is None, "expected None for an empty cache"
    for length in chunks:
        key, value = (random(1, 2, length, 8, dtype=dtype) for _ in range(2))
        first.append(value, key)  # allocates pages of another request in between
        expected = full.update_and_fetch(key, value, mask="causal")
        actual = second.update_and_fetch(key, value, mask="causal")
        assert_same_bits(actual[0], expected[0], "keys of a dense gather")
        assert_same_bits(actual[1], expected[1], "values of a dense gather")
        assert actual[2:] == expected[2:]
    second.release()
    assert second.gather_dense() is None, "expected None from a released cache"


def test_task_3_gathers_only_the_pages_of_the_tokens():
    pages, before = mx.zeros((2, 1, 16, 64)), mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(gather_pages(pages, mx.zeros(1000, mx.int32), 20))
    copied = mx.get_peak_memory() - before
    assert copied < 100_000, f"expected 2 of 1,000 pages to be copied, got {copied / 1e6:.1f} MB"


@pytest.mark.parametrize("chunks", [[11], [1] * 11, [4, 4, 3], [10, 1]])
@pytest.mark.parametrize("page_size", [1, 4, 128])
def test_task_3_week_2_model_with_dense_gather_is_bitwise_equal(dtype, chunks, page_size):
    model = Qwen3ModelWeek2(tiny_model(dtype), enable_flash_attn=True)
    pool = TinyKvPagedPool(page_size)
    dense = model.create_kv_cache()
    paged = [TinyKvPagedCache(pool) for _ in dense]
    offset = 0
    for length in chunks:
        ids = mx.array([IDS[offset : offset + length]])
        assert_same_bits(model(ids, offset, paged), model(ids, offset, dense), f"offset {offset}")
        offset += length


def test_task_3_caches_of_all_layers_share_one_pool():
    model = Qwen3ModelWeek3(tiny_model())
    assert model.page_size == model.page_pool.page_size == 128
    first, second = model.create_kv_cache(), model.create_kv_cache()
    assert len(first) == model.num_hidden_layers
    pools = {id(layer.pool) for layer in first + second}
    assert pools == {id(model.page_pool)}, "all layers' caches must share the model's pool"
    token = mx.zeros((1, model.num_kv_heads, len(IDS), model.head_dim))
    for layer in first:
        layer.append(token, token)
    owned = [page for layer in first for page in layer.page_ids]
    assert len(owned) == len(set(owned)) == model.num_hidden_layers
    assert [layer.offset for layer in first] == [len(IDS)] * 3
    assert_equal([layer.offset for layer in second], [0] * 3, "independent metadata, offset 0")
    for layer in first:
        layer.release()
    assert model.page_pool.num_free_pages == model.page_pool.num_pages


def test_task_3_dense_cache_is_rejected():
    oracle = tiny_model()
    model, week2 = Qwen3ModelWeek3(oracle), Qwen3ModelWeek2(oracle)
    dense = week2.create_kv_cache()
    with pytest.raises(ValueError, match="got TinyKvFullCache; use the model's"):
        model(mx.array([IDS]), 0, dense)
    assert [layer.offset for layer in dense] == [0] * 3
    with pytest.raises(ValueError, match="expected 3 caches, one per layer, got 1"):
        model(mx.array([IDS]), 0, model.create_kv_cache()[:1])
    with pytest.raises(ValueError, match="page_size must be at least 1, got 0"):
        Qwen3ModelWeek3(oracle, page_size=0)
