"""Week 2, day 6: chunked prefill and batched requests."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import as_numpy, assert_close, random
from tiny_llm import (
    BatchingKvCache,
    RoPE,
    TinyKvFullCache,
    causal_mask,
    scaled_dot_product_attention_grouped,
)


@pytest.mark.parametrize("traditional", [True, False])
def test_task_1_rope_with_per_sequence_offsets(device, dtype, traditional):
    rope = RoPE(16, 1000, traditional=traditional)
    x = random(4, 5, 3, 16, dtype=dtype)
    starts = [0, 700, 3, 3]
    together = rope(x, [slice(start, start + 5) for start in starts])
    for row, start in enumerate(starts):
        alone = rope(x[row : row + 1], slice(start, start + 5))
        assert_close(together[row : row + 1], alone, f"row {row} at position {start}", ulps=0)


def test_task_1_rope_rejects_offsets_of_wrong_length():
    with pytest.raises(ValueError, match="expected 3 offsets, one per sequence, got 2"):
        RoPE(8, 10)(mx.zeros((3, 1, 1, 8)), [slice(0, 1), slice(1, 2)])


@pytest.mark.parametrize(("L", "S"), [(1, 9), (4, 9), (9, 9)])
def test_task_1_mask_of_the_last_queries(device, L, S):
    full = causal_mask(S, S, mx.float32)
    assert causal_mask(L, S, mx.float32).tolist() == full[S - L :].tolist()


def filled_cache(length: int) -> TinyKvFullCache:
    cache = TinyKvFullCache()
    if length:
        cache.update_and_fetch(random(1, 2, length, 8), random(1, 2, length, 8))
    return cache


@pytest.mark.parametrize("L", [1, 3])
@pytest.mark.parametrize("lengths", [[4, 9, 0], [None, 5, None], [0, None, 1], [7, 7, 7]])
def test_task_2_attention_equals_each_request_alone(device, L, lengths):
    batch = BatchingKvCache(max_active_requests=3, max_seq_len=64)
    alone = {}
    for slot, length in enumerate(lengths):
        if length is None:
            continue
        cache, twin = filled_cache(length), TinyKvFullCache()
        if length:
            twin.update_and_fetch(*cache.key_values)
        batch.add_request(cache, slot)
        alone[slot] = twin
    query, key, value = random(3, 4, L, 8), random(3, 2, L, 8), random(3, 2, L, 8)
    keys, values, length, mask = batch.update_and_fetch(key, value, mask_length=L, mask="causal")
    S_max = max(L + length for length in lengths if length is not None)
    assert keys.shape == (3, 2, S_max, 8)
    assert mask.shape == (3, 1, L, S_max)
    assert length is None
    together = scaled_dot_product_attention_grouped(query, keys, values, mask=mask)
    for slot, cache in alone.items():
        row = slice(slot, slot + 1)
        k, v, _, _ = cache.update_and_fetch(key[row], value[row])
        expected = scaled_dot_product_attention_grouped(query[row], k, v, mask="causal")
        assert_close(together[row], expected, f"slot {slot} (right-aligned, padding masked)", 8)


def test_task_2_padding_and_idle_slots_are_masked(device):
    batch = BatchingKvCache(3, 64)
    batch.add_request(filled_cache(2), 0)
    batch.add_request(filled_cache(5), 2)
    new = random(3, 2, 2, 8)
    mask = as_numpy(batch.update_and_fetch(new, new, mask_length=2)[3])[:, 0]
    hidden = -np.inf
    assert mask[0].tolist() == [[hidden] * 3 + [0, 0, 0, hidden], [hidden] * 3 + [0, 0, 0, 0]]
    assert (mask[1] == hidden).all()
    assert mask[2].tolist() == [[0] * 6 + [hidden], [0] * 7]


def test_task_2_slots_are_reused_bounded_and_released(device):
    batch = BatchingKvCache(2, 64)
    batch.add_request(filled_cache(9), 0)
    batch.add_request(filled_cache(3), 1)
    batch.remove_request(0)
    batch.add_request(filled_cache(1), 0)
    new = random(2, 2, 1, 8)
    keys, _, _, mask = batch.update_and_fetch(new, new)
    assert keys.shape[2] == 4, "expected no trace of the slot's previous request"
    assert as_numpy(mask)[0, 0, 0].tolist() == [-np.inf, -np.inf, 0, 0]
    batch = BatchingKvCache(2, max_seq_len=10)
    batch.add_request(filled_cache(4), 0)
    new = random(2, 2, 1, 8)
    capacity = batch.append(new, new)[0].shape[2]
    assert capacity <= 10, f"expected a capacity of at most max_seq_len=10 tokens, got {capacity}"
    batch = BatchingKvCache(2, 64)
    batch.add_request(filled_cache(4), 1)
    batch.rewind(3)
    assert batch.lengths[1] == 1
    batch.release()
    assert batch.lengths == [None, None]


@pytest.mark.parametrize("L", [1, 2])
def test_task_2_fetch_with_all_slots_idle_is_rejected(L):
    new = mx.zeros((2, 2, L, 8))
    with pytest.raises(ValueError, match="all slots are idle"):
        BatchingKvCache(2, max_seq_len=10).update_and_fetch(new, new)


def fetch(batch, rows: int, L: int, mask=None):
    new = mx.zeros((rows, 2, L, 8))
    return batch.update_and_fetch(keys=new, values=new, mask=mask)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda batch: batch.add_request(filled_cache(1), 0), "slot 0 already has a request"),
        (lambda batch: batch.add_request(filled_cache(1), 2), "slot must be from 0 to 1, got 2"),
        (lambda batch: batch.add_request(filled_cache(11), 1), "at most 10 tokens, got 11"),
        (lambda batch: batch.remove_request(1), "slot 1 has no request"),
        (lambda batch: batch.remove_request(-1), "slot must be from 0 to 1, got -1"),
        (lambda batch: fetch(batch, 3, 1), "expected 2 rows, one per slot, got 3"),
        (lambda batch: fetch(batch, 2, 7), "slot 0 has 4 tokens; 7 more exceed max_seq_len 10"),
        (lambda batch: fetch(batch, 2, 1, mx.zeros((1, 5))), "the cache builds the mask"),
        (lambda batch: fetch(batch, 2, 1, "full"), "the cache builds the mask"),
    ],
)
def test_task_2_misuse_is_rejected_without_side_effects(action, message):
    batch = BatchingKvCache(2, max_seq_len=10)
    batch.add_request(filled_cache(4), 0)
    with pytest.raises(ValueError, match=message):
        action(batch)
    assert batch.lengths[0] == 4
