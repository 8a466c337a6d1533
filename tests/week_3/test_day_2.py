"""Week 3, day 2: paged attention in the model and in batches."""

import mlx.core as mx
import numpy as np
import pytest

from tests.metal.paged import paged_attend
from tests.paging import ShadowedCache, check_integrity, cut_into_pages, padded, sequences
from tests.support import (
    ByteTokenizer,
    assert_close,
    assert_equal,
    assert_same_bits,
    assert_same_completions,
    chat_prompt,
    random,
    tiny_model,
    tiny_quantized_model,
)
from tiny_llm import (
    BatchingKvCache,
    OutOfPagesError,
    Qwen3ModelWeek2,
    Qwen3ModelWeek3,
    TinyKvFullCache,
    TinyKvPagedCache,
    TinyKvPagedPool,
    attention,
    batch_generate,
    flash_attention,
    make_sampler,
    paged_attention,
    paged_attention_varlen,
    scaled_dot_product_attention_grouped,
    simple_generate_with_kv_cache,
)
from tiny_llm.attention.paged import paged_attention_reference
from tiny_llm.batch import BatchGeneration
from tiny_llm.demo import BATCH_PROMPTS


def batch_of(lengths, page_size=4, capacity=None, max_seq_len=64):
    """Returns (batch, pool, one reference cache per busy slot)."""
    pool = TinyKvPagedPool(page_size, capacity)
    batch, shadowed_caches = BatchingKvCache(len(lengths), max_seq_len), {}
    for slot, length in enumerate(lengths):
        if length is not None:
            shadowed_caches[slot] = ShadowedCache(pool)
            if length:
                shadowed_caches[slot].append(length)
            # assigned without add_request, which is implemented in task 4
            batch._slots[slot] = shadowed_caches[slot].cache
    return batch, pool, shadowed_caches


@pytest.mark.parametrize("page_size", [1, 3, 4, 128])
@pytest.mark.parametrize("chunks", [[1], [5], [4, 4, 1], [7, 1, 128, 1]])
def test_task_1_single_request(device, dtype, page_size, chunks):
    cache = TinyKvPagedCache(TinyKvPagedPool(page_size))
    for length in chunks:
        key, value = (random(1, 2, length, 8, dtype=dtype) for _ in range(2))
        metadata = cache.update_and_fetch_paged(key, value, mask="causal")
        assert metadata.block_table.tolist() == [cache.page_ids]
        assert metadata.context_lens.tolist() == [cache.offset], (
            "context_lens must include the new tokens"
        )
        assert metadata.block_table.dtype == metadata.context_lens.dtype == mx.int32
        assert metadata.page_size == page_size
        assert metadata.mask == "causal", "expected the mask to be passed through"


@pytest.mark.parametrize("L", [1, 3])
@pytest.mark.parametrize("lengths", [[4, 9, 0], [None, 5, None], [0, None, 1], [7, 7, 7]])
def test_task_1_slots_match_single_request_caches(L, lengths):
    batch, pool, shadowed_caches = batch_of(lengths)
    key, value = random(3, 2, L, 8), random(3, 2, L, 8)
    metadata = batch.update_and_fetch_paged(key, value, mask="causal")
    for slot, shadowed in shadowed_caches.items():
        shadowed.append_dense(key[slot : slot + 1], value[slot : slot + 1])
    check_integrity(pool, list(shadowed_caches.values()))
    width = max(shadowed.cache.num_pages for shadowed in shadowed_caches.values())
    rows = metadata.block_table.tolist()
    assert metadata.block_table.dtype == metadata.context_lens.dtype == mx.int32
    for slot, length in enumerate(lengths):
        if length is None:
            assert rows[slot] == [-1] * width, "expected no pages for an idle slot"
            assert metadata.context_lens[slot].item() == 0
        else:
            own = shadowed_caches[slot].cache.page_ids
            assert rows[slot] == own + [-1] * (width - len(own))
            assert metadata.context_lens[slot].item() == length + L
    assert (metadata.page_size, metadata.mask) == (4, "causal")
    assert metadata.key_pages is pool.key_pages


def test_task_1_rewind_and_release():
    batch, pool, _ = batch_of([4, None, 9])
    batch.rewind(3)
    assert batch.lengths == [1, None, 6]
    with pytest.raises(ValueError, match="cannot rewind slot 0 by 2 tokens; it has 1"):
        batch.rewind(2)
    assert batch.lengths == [1, None, 6]
    batch.release()
    assert batch.lengths == [None] * 3
    assert pool.num_free_pages == pool.num_pages


def test_task_1_allocation_is_all_or_nothing():
    batch, pool, shadowed_caches = batch_of([4, 3, 4], capacity=4)
    for L in (3, 1):
        row = mx.zeros((3, 2, L, 8))
        with pytest.raises(OutOfPagesError):
            batch.update_and_fetch_paged(row, row)
        check_integrity(pool, list(shadowed_caches.values()))
    # Releases the pages, as a scheduler does when it preempts the request.
    shadowed_caches[0].cache.release()
    batch.update_and_fetch_paged(row, row)
    assert batch.lengths == [1, 4, 5]


def write(method, rows: int = 2, L: int = 1, D: int = 8, **options):
    new = mx.zeros((rows, 2, L, D))
    return method(new, new, **options)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda batch: write(batch.append), "paged requests have no buffer"),
        (lambda batch: write(batch.update_and_fetch), "paged requests have no buffer"),
        (
            lambda batch: write(batch.update_and_fetch_paged, mask=mx.zeros((1, 4))),
            "paged attention does not support array masks",
        ),
        (lambda batch: write(batch.update_and_fetch_paged, 1), "expected 2 rows, .* got 1"),
        (
            lambda batch: write(batch.update_and_fetch_paged, L=7),
            "slot 0 has 4 tokens; 7 more exceed max_seq_len 10",
        ),
        (lambda batch: write(batch.update_and_fetch_paged, D=9), "2 heads of size 8"),
        (lambda batch: batch.add_request(TinyKvFullCache(), 1), "all dense or all in the"),
        (
            lambda batch: batch.add_request(TinyKvPagedCache(TinyKvPagedPool()), 1),
            "all dense or all in the pages of one pool",
        ),
        (lambda batch: batch.add_request(batch._slots[0], 1), "already has a slot"),
        (lambda batch: batch.add_request("cache", 1), "must be a TinyKvFullCache or a TinyKv"),
    ],
)
def test_task_1_misuse_is_rejected_without_side_effects(action, message):
    batch, pool, shadowed_caches = batch_of([4, None], max_seq_len=10)
    with pytest.raises(ValueError, match=message):
        action(batch)
    assert batch.lengths == [4, None]
    check_integrity(pool, list(shadowed_caches.values()))


def test_task_1_dense_batch_has_no_pages():
    batch = BatchingKvCache(1, 10)
    row = mx.zeros((1, 2, 1, 8))
    with pytest.raises(ValueError, match="no slot is paged"):
        batch.update_and_fetch_paged(row, row)
    batch.add_request(TinyKvFullCache(), 0)
    with pytest.raises(ValueError, match="no slot is paged"):
        batch.update_and_fetch_paged(row, row)


def attend_in_float32(query, key, value, scale=None, mask=None) -> mx.array:
    arrays = (x.astype(mx.float32) for x in (query, key, value))
    return scaled_dot_product_attention_grouped(*arrays, scale, mask).astype(query.dtype)


@pytest.mark.parametrize("page_size", [1, 4, 64, 100])
@pytest.mark.parametrize("mask", ["causal", None])
def test_task_2_equals_attention_to_each_sequence(dtype, page_size, mask):
    lengths = [9, 70, 3]
    pairs = sequences(lengths, D=16, dtype=dtype)
    keys, values, table = cut_into_pages(pairs, page_size)
    query = random(3, 6, 3, 16, dtype=dtype)  # 3 query heads per key head
    pages = keys, values, padded(table)
    actual = paged_attention(query, *pages, mx.array(lengths), page_size, mask=mask)
    for row, (k, v) in enumerate(pairs):
        expected = attend_in_float32(query[row], k, v, mask=mask)
        assert_close(actual[row], expected, f"sequence {row}", ulps=8)
        flash = flash_attention(query[row], k, v, mask=mask)
        assert_same_bits(actual[row], flash, f"sequence {row}, compared with flash attention")
    if mask == "causal":
        default = paged_attention(query, keys, values, padded(table), lengths, page_size)
        assert_same_bits(default, actual, "expected causal by default")
    assert attention.paged_attention is paged_attention
    assert attention.paged_attention_varlen is paged_attention_varlen


def test_task_2_idle_slot_is_zero_without_side_effects():
    batch, _, _ = batch_of([5, None, 9])
    key, value, query = random(3, 2, 1, 8), random(3, 2, 1, 8), random(3, 4, 1, 8)
    found = batch.update_and_fetch_paged(key, value, mask="causal")
    pages = found.key_pages, found.value_pages, found.block_table
    out = paged_attention(query, *pages, found.context_lens, found.page_size, mask=found.mask)
    assert_close(out[1], mx.zeros_like(out[1]), "rows of an idle slot", ulps=0)
    assert mx.all(mx.isfinite(out)).item()


@pytest.mark.parametrize("page_size", [3, 16])
@pytest.mark.parametrize("mask", ["causal", None])
def test_task_2_reference_gathers_and_attends(dtype, page_size, mask):
    lengths = [9, 0, 33, 2]  # 0: an idle slot; 2: fewer keys than queries
    pairs = sequences(lengths, D=16, dtype=dtype)
    keys, values, table = cut_into_pages(pairs, page_size)
    query = random(4, 4, 3, 16, dtype=dtype)
    common = (query, keys, values, padded(table), mx.array(lengths), page_size, 0.3, mask)
    actual, fast = paged_attention_reference(*common), paged_attention(*common)
    assert actual.dtype == dtype
    for row, (k, v) in enumerate(pairs):
        first = max(0, 3 - lengths[row]) if mask or not lengths[row] else 0
        hidden = actual[row, :, :first]
        assert_close(hidden, mx.zeros_like(hidden), f"fully masked queries of sequence {row}")
        if lengths[row]:
            expected = attend_in_float32(query[row, :, first:], k, v, 0.3, mask)
            assert_close(actual[row, :, first:], expected, f"sequence {row}", ulps=8)
    assert_close(fast, actual, "kernel compared with the reference", ulps=16)


def test_task_2_reference_computes_in_float32():
    # Scores are large and close, so bfloat16, whose spacing is 1/2 above 64, would be too coarse.
    key, value = (random(2, 300, 16, dtype=mx.bfloat16, scale=scale) for scale in (5, 1))
    keys, values, table = cut_into_pages([(key, value)], 16)
    query = random(1, 4, 3, 16, dtype=mx.bfloat16, scale=5)
    pages = keys, values, padded(table), mx.array([300])
    actual = paged_attention_reference(query, *pages, 16, 0.25, None)
    expected = attend_in_float32(query[0], key, value, 0.25)
    assert actual.dtype == mx.bfloat16
    assert_close(actual[0], expected, "attention in float32, rounded once", ulps=2)


@pytest.mark.parametrize("mask", ["causal", None])
@pytest.mark.parametrize("page_size", [3, 16])
def test_task_2_readable_metal_kernel(dtype, page_size, mask):
    lengths = [9, 0, 33, 1]
    keys, values, table = cut_into_pages(sequences(lengths, dtype=dtype), page_size)
    query = random(4, 4, 3, 40, dtype=dtype)
    query[3] *= 1000  # scores far above and far below 0, of one key
    common = (query, keys, values, padded(table), mx.array(lengths))
    with mx.stream(mx.cpu):
        expected = paged_attention_reference(*common, page_size, mask=mask)
    actual = paged_attend("readable", *common, causal=mask == "causal")
    assert_close(actual, expected, "paged_attention_readable", ulps=16)


@pytest.mark.parametrize("mode", ["asan", "race"])
def test_task_2_no_memory_fault_or_race(mode):
    keys, values, table = cut_into_pages([(random(1, 7, 33), random(1, 7, 33))], 3, spare=0)
    query = random(1, 2, 2, 33)
    paged_attend("readable", query, keys, values, padded(table), [7], mode=mode)
    missing = mx.array([[0, 10**6, 1]], dtype=mx.int32)
    out = paged_attend("readable", query, keys, values, missing, [7], mode=mode)
    assert mx.all(mx.isnan(out)).item(), "expected NaN if a page does not exist"


IDS = [3, 17, 130, 0, 3, 99, 5, 41, 8, 77, 2]


@pytest.mark.parametrize("chunks", [[11], [1] * 11, [4, 4, 3], [10, 1]])
@pytest.mark.parametrize("page_size", [1, 4, 128])
def test_task_3_logits_are_bitwise_equal_to_week_2(instruction_set, dtype, chunks, page_size):
    oracle = tiny_model(dtype)
    week2 = Qwen3ModelWeek2(oracle, enable_flash_attn=True)
    expected = week2(mx.array([IDS]), 0, week2.create_kv_cache())
    model = Qwen3ModelWeek3(oracle, page_size)
    cache, offset, logits = model.create_kv_cache(), 0, []
    for length in chunks:
        logits.append(model(mx.array([IDS[offset : offset + length]]), offset, cache))
        mx.eval(logits)
        offset += length
    assert_same_bits(mx.concatenate(logits, axis=1), expected, f"chunks {chunks}")


def quantized_pair(page_size: int) -> tuple[Qwen3ModelWeek2, Qwen3ModelWeek3]:
    """Dense and paged models with the same weights."""
    mlx_model = tiny_quantized_model()
    week2 = Qwen3ModelWeek2(mlx_model, enable_flash_attn=True)
    return week2, Qwen3ModelWeek3(mlx_model, page_size)


@pytest.mark.parametrize("page_size", [3, 128])
@pytest.mark.parametrize("lengths", [[3, 8, 5], [1, 1, 1], [6, None, 2], [40, 2, 300]])
def test_task_3_batch_is_bitwise_equal_to_single_requests(instruction_set, lengths, page_size):
    week2, model = quantized_pair(page_size)
    rng = np.random.default_rng(0)
    prompts = [None if n is None else rng.integers(0, 131, n).tolist() for n in lengths]
    next_ids = rng.integers(0, 131, (3, 4))
    batch = [BatchingKvCache(3, 512) for _ in range(model.num_hidden_layers)]
    alone = [week2.create_kv_cache() for _ in prompts]
    for slot, prompt in enumerate(prompts):
        if prompt is not None:
            request, half = model.create_kv_cache(), len(prompt) // 2
            if half:  # prefills in two chunks; the reference prefills in one
                mx.eval(model(mx.array([prompt[:half]]), 0, request))
            mx.eval(model(mx.array([prompt[half:]]), half, request))
            mx.eval(week2(mx.array([prompt]), 0, alone[slot]))
            for layer, cache in zip(batch, request, strict=True):
                # assigned without add_request, which is implemented in task 4
                layer._slots[slot] = cache
    for step in range(4):
        offsets = [0 if prompt is None else len(prompt) + step for prompt in prompts]
        ids = next_ids[:, step : step + 1].tolist()
        together = model.next_token_logits(mx.array(ids), offsets, batch)
        mx.eval(together)
        for slot, prompt in enumerate(prompts):
            if prompt is not None:
                ids_of_slot = mx.array([ids[slot]])
                expected = week2.next_token_logits(ids_of_slot, offsets[slot], alone[slot])
                assert_same_bits(together[slot], expected[0], f"slot {slot}, step {step}")


def test_task_3_dense_batch_is_rejected():
    week2, model = quantized_pair(4)
    cache = week2.create_kv_cache()
    week2(mx.array([[1, 2]]), 0, cache)
    batch = [BatchingKvCache(1, 64) for _ in cache]
    for layer, dense in zip(batch, cache, strict=True):
        layer.add_request(dense, 0)
    with pytest.raises(ValueError, match="no slot is paged"):
        model(mx.array([[3]]), 2, batch)
    assert batch[0].lengths == [2]


def test_task_3_step_does_not_copy_the_pool():
    _, model = quantized_pair(16)
    model.page_pool = TinyKvPagedPool(16, capacity=4096)  # 4 MB of keys and 4 MB of values
    cache = model.create_kv_cache()
    mx.eval(model(mx.array([[1, 2, 3]]), 0, cache))
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for offset in range(3, 40):
        mx.eval(model(mx.array([[5]]), offset, cache))
    copied = mx.get_peak_memory() - before
    hint = "a layer's write copied the pool because the previous layer's read was pending"
    assert copied < 500_000, (
        f"peak memory grew by {copied / 1e6:.1f} MB instead of a token: {hint} (task 3.1.1, write)"
    )


def test_task_3_text_equals_week_2():
    oracle = tiny_model(vocab_size=256)
    week2 = Qwen3ModelWeek2(oracle, enable_flash_attn=True)
    model, tokenizer = Qwen3ModelWeek3(oracle, page_size=4), ByteTokenizer()
    for prompt in ("a", "hello", "a longer prompt, to be prefilled at once"):
        expected = simple_generate_with_kv_cache(week2, tokenizer, prompt, max_tokens=30)
        assert simple_generate_with_kv_cache(model, tokenizer, prompt, max_tokens=30) == expected
        assert model.page_pool.num_free_pages == model.page_pool.num_pages, (
            "pages leaked: decode_with_cache (task 2.1.4) must release its caches at the end"
        )


def test_task_4_add_request_does_not_copy():
    batch, pool, _ = batch_of([None, None])
    shadowed = ShadowedCache(pool)
    shadowed.append(9)
    pages, memory = list(shadowed.cache.page_ids), pool.key_pages
    batch.add_request(shadowed.cache, 1)
    assert pool.key_pages is memory, "expected no write to the pool"
    del memory  # this reference would prevent in-place writes
    assert shadowed.cache.page_ids == pages
    assert batch.lengths == [None, 9]
    in_use = pool.num_pages - pool.num_free_pages
    batch.remove_request(1)
    assert pool.num_free_pages == in_use, "expected the slot's pages in the free list"
    assert batch.lengths == [None, None]
    assert shadowed.cache.page_ids == [], "expected the removed cache to own no pages"
    other = ShadowedCache(pool)
    other.append(5)
    batch.add_request(other.cache, 1)
    check_integrity(pool, [other])


PROMPTS = ["a", "hello there", "x" * 40, "one two three", "zz", "the longest of all prompts " * 2]


@pytest.fixture(scope="module")
def small_pair() -> tuple[Qwen3ModelWeek2, Qwen3ModelWeek3]:
    mx.random.seed(5)
    oracle = tiny_model(vocab_size=256)
    return Qwen3ModelWeek2(oracle, enable_flash_attn=True), Qwen3ModelWeek3(oracle, page_size=8)


def assert_all_pages_are_free(model: Qwen3ModelWeek3) -> None:
    assert model.page_pool.num_free_pages == model.page_pool.num_pages, (
        "expected all pages to be free at the end"
    )


@pytest.mark.parametrize("batch_size", [1, 3, 16])
@pytest.mark.parametrize("prefill_step", [1, 7, 128])
@pytest.mark.parametrize("seed", [None, 7])
def test_task_4_same_output_as_week_2(small_pair, batch_size, prefill_step, seed):
    week2, model = small_pair

    def outputs(model):
        sampler = None if seed is None else make_sampler(1.0, top_p=0.9, seed=seed)
        sizes = 70, batch_size, prefill_step
        return batch_generate(model, ByteTokenizer(), PROMPTS, *sizes, sampler)

    assert_same_completions(outputs(model), outputs(week2))
    assert_all_pages_are_free(model)


def test_task_4_invariants_hold_after_every_step(small_pair):
    _, model = small_pair
    batch = BatchGeneration(model, ByteTokenizer(), PROMPTS, 70, 3, prefill_step=7)
    while not batch.is_done:
        joining = batch.prefilling
        pages = [list(layer.page_ids) for layer in joining.cache] if joining else []
        batch.step()
        live = [slot for slot, request in enumerate(batch.slots) if request is not None]
        owned = []
        for layer, cache in enumerate(batch._caches):
            for slot in live:
                paged, request = cache._slots[slot], batch.slots[slot]
                assert_equal(
                    paged.offset, request.offset, "a context length of the tokens computed"
                )
                assert paged.num_pages == -(-paged.offset // 8)
                owned += paged.page_ids
                if request is joining:
                    kept = paged.page_ids[: len(pages[layer])]
                    assert_equal(kept, pages[layer], "the request's pages before it joined")
        waiting = batch.prefilling.cache if batch.prefilling is not None else []
        owned += [page for layer in waiting for page in layer.page_ids]
        pool = model.page_pool
        assert len(set(owned)) == len(owned) == pool.num_pages - pool.num_free_pages
    assert_all_pages_are_free(model)


def test_task_4_failed_run_frees_its_pages(small_pair):
    _, model = small_pair
    calls = []

    def sampler(logprobs):
        calls.append(len(logprobs))
        if len(calls) == 5:
            raise RuntimeError("sampler failed")
        return mx.argmax(logprobs, axis=-1)

    with pytest.raises(RuntimeError, match="sampler failed"):
        batch_generate(model, ByteTokenizer(), PROMPTS, 70, 3, prefill_step=7, sampler=sampler)
    assert_all_pages_are_free(model)


@pytest.mark.slow
def test_task_4_demo_output(demo):
    mlx_model, tokenizer = demo
    week2 = Qwen3ModelWeek2(mlx_model, enable_flash_attn=True)
    model = Qwen3ModelWeek3(mlx_model, page_size=16)
    prompts = [chat_prompt(tokenizer, prompt) for prompt in BATCH_PROMPTS[::3]]
    expected = [
        (index, simple_generate_with_kv_cache(week2, tokenizer, prompt))
        for index, prompt in enumerate(prompts)
    ]
    for batch_size, prefill_step in ((3, 7), (8, 128)):
        assert batch_generate(model, tokenizer, prompts, 512, batch_size, prefill_step) == expected
    assert_all_pages_are_free(model)
