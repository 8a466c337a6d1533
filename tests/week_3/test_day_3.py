"""Week 3, day 3: ragged batches, page ownership, admission, token budget."""

import gc
import resource

import mlx.core as mx
import numpy as np
import pytest

from tests.engine.scheduler_harness import GREEDY, add, run_random_workloads, scheduler, step
from tests.paging import cut_into_pages, padded, sequences
from tests.support import (
    assert_close,
    assert_equal,
    assert_same_bits,
    random,
    tiny_model,
    tiny_quantized_model,
)
from tiny_llm import (
    OutOfPagesError,
    PagedStorage,
    Qwen3ModelWeek2,
    Qwen3ModelWeek3,
    RaggedBatch,
    UserError,
    flash_attention,
    paged_attention,
    paged_attention_varlen,
)
from tiny_llm.attention.paged import paged_attention_varlen_reference
from tiny_llm.engine.scheduling.config import SchedulerConfig
from tiny_llm.engine.scheduling.page_allocator import PageAllocator
from tiny_llm.engine.scheduling.page_manager import PageManager
from tiny_llm.engine.scheduling.prefix_cache import PrefixNode
from tiny_llm.engine.scheduling.request import ChunkOutput, EngineRequest, RequestState
from tiny_llm.engine.scheduling.scheduler import Scheduler
from tiny_llm.kv_storage import KvLayout, LayerKv
from tiny_llm.kv_storage.paged_storage import layer_cache_views


@pytest.mark.parametrize("page_size", [3, 64])
def test_task_1_mixed_decode_and_prefill(dtype, page_size):
    counts, lengths = [1, 40, 1, 9], [100, 40, 7, 30]
    pairs = sequences(lengths, D=16, dtype=dtype)
    keys, values, table = cut_into_pages(pairs, page_size)
    ends = [0, 1, 41, 42, 51]
    query = random(51, 4, 16, dtype=dtype)
    actual = paged_attention_varlen(
        query, keys, values, mx.array(ends), mx.array(lengths), padded(table), page_size
    )
    for s, (k, v) in enumerate(pairs):
        own = slice(ends[s], ends[s + 1])
        expected = flash_attention(query[own].swapaxes(0, 1), k, v, mask="causal").swapaxes(0, 1)
        assert_same_bits(actual[own], expected, f"{counts[s]} new tokens of {lengths[s]}")


def test_task_1_equal_lengths_match_paged_attention(dtype):
    lengths = [70, 9]
    keys, values, table = cut_into_pages(sequences(lengths, D=16, dtype=dtype), 16)
    query = random(2, 5, 4, 16, dtype=dtype)  # B×L×H_q×D
    common = (padded(table), mx.array(lengths))
    expected = paged_attention(query.swapaxes(1, 2), keys, values, *common, 16, mask="causal")
    ragged_query, ends = query.reshape(10, 4, 16), mx.array([0, 5, 10])
    actual = paged_attention_varlen(ragged_query, keys, values, ends, *common[::-1], 16)
    actual = actual.reshape(2, 5, 4, 16).swapaxes(1, 2)
    assert_same_bits(actual, expected, "ragged and batched attention")


class Sequence:
    """Engine-side request state: tokens, number of computed tokens, page ids."""

    def __init__(self, ids: list[int], pages: list[int], page_size: int):
        self.ids, self.pages, self.page_size, self.computed = ids, pages, page_size, 0

    def slot(self, position: int) -> int:
        return self.pages[position // self.page_size] * self.page_size + position % self.page_size


def ragged(sequences: list[Sequence], counts: list[int]) -> tuple[list[int], RaggedBatch]:
    """The next `counts[i]` tokens of each sequence i; 0 skips the sequence."""
    ids, positions, slots, ends, lengths, table = [], [], [], [0], [], []
    for sequence, new in zip(sequences, counts, strict=True):
        if not new:
            continue
        span = range(sequence.computed, sequence.computed + new)
        ids += [sequence.ids[position] for position in span]
        positions += span
        slots += [sequence.slot(position) for position in span]
        ends.append(len(ids))
        lengths.append(span.stop)
        table.append(sequence.pages[: -(-span.stop // sequence.page_size)])
        sequence.computed = span.stop
    return ids, RaggedBatch(positions, slots, ends, lengths, table)


# One row per step: the number of new tokens of each sequence.
PLANS = {
    "sequentially": [[90, 0, 0, 0], [0, 33, 0, 0], [0, 0, 200, 0], [0, 0, 0, 1]],
    "all at once": [[90, 33, 200, 1]],
    "decode with prefill": [[60, 1, 64, 0], *[[1, 1, 10, 0]] * 12, [18, 20, 16, 1]],
    "tiny chunks": [[1, 1, 2, 1], *[[1, 1, 3, 0]] * 32, [57, 0, 102, 0]],
}


@pytest.mark.parametrize("page_size", [5, 64])
@pytest.mark.parametrize("plan", PLANS)
def test_task_1_logits_are_bitwise_equal_to_single_sequences(instruction_set, plan, page_size):
    mlx_model = tiny_quantized_model()
    week2 = Qwen3ModelWeek2(mlx_model, enable_flash_attn=True)
    model = Qwen3ModelWeek3(mlx_model, page_size)
    rng = np.random.default_rng(1)
    lengths = [90, 33, 200, 1]
    counts = [-(-length // page_size) for length in lengths]
    storage = model.create_paged_storage(sum(counts) + 3)
    shuffled = rng.permutation(sum(counts) + 3).tolist()
    sequences, expected = [], []
    for length, count in zip(lengths, counts, strict=True):
        ids = rng.integers(0, 131, length).tolist()
        sequences.append(Sequence(ids, [shuffled.pop() for _ in range(count)], page_size))
        expected.append(week2(mx.array([ids]), 0, week2.create_kv_cache())[0])
    for new_tokens in PLANS[plan]:
        starts = [sequence.computed for sequence in sequences]
        ids, batch = ragged(sequences, new_tokens)
        logits = model.ragged_logits(ids, batch, list(range(len(ids))), storage)
        spans = zip(expected, starts, new_tokens, strict=True)
        alone = mx.concatenate([e[s : s + new] for e, s, new in spans if new])
        assert_same_bits(logits, alone, f"step with {new_tokens} new tokens")
    assert [sequence.computed for sequence in sequences] == lengths


def test_task_1_selected_rows_of_logits():
    model = Qwen3ModelWeek3(tiny_quantized_model(), 8)
    storage = model.create_paged_storage(4)
    ids, batch = ragged([Sequence(list(range(3, 23)), [2, 0, 3], 8)], [20])
    everything = model.ragged_logits(ids, batch, range(20), storage)
    mx.eval(everything)  # evaluated before the next step overwrites the slots
    some = model.ragged_logits(mx.array(ids), batch, mx.array([19, 4]), storage)
    assert_same_bits(some, everything[mx.array([19, 4])], "rows in the requested order")
    assert model.ragged_logits(ids, batch, [], storage).shape == (0, 131)
    storage = model.create_paged_storage(3)
    sequence = Sequence(list(range(3, 23)), [2, 0, 1], 8)
    ids, batch = ragged([sequence], [12])
    mx.eval(model.ragged_logits(ids, batch, [], storage))
    ids, batch = ragged([sequence], [8])
    actual = model.ragged_logits(ids, batch, [7], storage)
    cache = model.create_kv_cache()
    expected = model.next_token_logits(mx.array([sequence.ids]), 0, cache)
    assert_same_bits(actual, expected, "after a chunk without logits")


def test_task_1_storage_is_written_in_place():
    model = Qwen3ModelWeek3(tiny_quantized_model(), 16)
    gc.collect()  # frees arrays of earlier tests
    before = mx.get_active_memory()
    storage = model.create_paged_storage(2048)
    grown = mx.get_active_memory() - before
    # Each array starts at a memory page and has space to end at one.
    alignment = len(storage.arrays) * 2 * resource.getpagesize()
    # MLX allocates a few small internal arrays.
    assert 0 <= grown - 2048 * 16 * model.kv_bytes_per_token < alignment + 4096
    assert storage.nbytes == 0, "no page has been written"
    assert storage.key_pages[0].shape == (2048, 2, 16, 16)
    sequence = Sequence([5] * 40, [7, 2000, 3], 16)
    ids, batch = ragged([sequence], [30])
    mx.eval(model.ragged_logits(ids, batch, [29], storage))
    mx.reset_peak_memory()
    for _ in range(10):
        ids, batch = ragged([sequence], [1])
        mx.eval(model.ragged_logits(ids, batch, [0], storage))
    assert storage.nbytes == 3 * 16 * model.kv_bytes_per_token
    assert mx.get_peak_memory() - before - grown < 500_000
    assert mx.get_active_memory() - before - grown < 500_000


def test_task_1_misuse_is_rejected():
    with pytest.raises(ValueError, match="3 tokens of 1 .* 3 entries of slot_mapping, got 2"):
        RaggedBatch([0, 1, 2], [0, 1], [0, 3], [3], [[0]])
    with pytest.raises(ValueError, match="require 2 entries of cu_seqlens_q, got 3"):
        RaggedBatch([0, 1], [0, 1], [0, 1, 2], [2], [[0]])
    with pytest.raises(ValueError, match="must be at least 1, got 0 and 8"):
        PagedStorage(KvLayout.one_table([LayerKv(0, 2, 16)], 8), 0, mx.float32)
    model = Qwen3ModelWeek3(tiny_quantized_model(), 8)
    storage = model.create_paged_storage(1)
    batch = RaggedBatch([0, 1], [0, 1], [0, 2], [2], [[0]])
    assert (batch.num_tokens, batch.num_seqs) == (2, 1)
    with pytest.raises(ValueError, match="ids must have shape \\(2,\\), .* got"):
        model.ragged_logits([1], batch, [0], storage)
    row, plan = mx.zeros((1, 2, 2, 16), mx.bfloat16), storage.plan(batch)
    views = layer_cache_views(plan.attention_metadata, plan.buffers, 3)
    with pytest.raises(ValueError, match="for a ragged batch, got None"):
        views[0].update_and_fetch_paged(row, row)


def test_task_1_kv_bytes_per_token():
    model = Qwen3ModelWeek3(tiny_quantized_model())
    assert model.kv_bytes_per_token == 2 * 3 * 2 * 16 * 2
    plain = Qwen3ModelWeek3(tiny_model())
    assert plain.kv_bytes_per_token == 2 * 3 * 2 * 16 * 4, "float32"


@pytest.mark.parametrize("page_size", [3, 64])
def test_task_1_reference_loops_over_sequences(dtype, page_size):
    # The third sequence has more queries than keys.
    lengths, ends = [100, 5, 2, 30], [0, 1, 6, 10, 19]
    keys, values, table = cut_into_pages(sequences(lengths, D=16, dtype=dtype), page_size)
    query = random(19, 4, 16, dtype=dtype)
    numbers = (mx.array(ends), mx.array(lengths), padded(table), page_size, 0.3)
    expected = paged_attention_varlen(query, keys, values, *numbers)
    actual = paged_attention_varlen_reference(query, keys, values, *numbers)
    assert actual.dtype == dtype
    assert_close(actual, expected, "reference compared with the kernel", ulps=16)


def test_task_2_pages_are_freed_exactly_once():
    allocator = PageAllocator(3)
    first = allocator.allocate(2)
    with pytest.raises(OutOfPagesError):
        allocator.allocate(2)
    assert allocator.num_free == 1, "a failed allocation must take no pages"
    for page in first:
        allocator.free(page)
    with pytest.raises(ValueError, match="is already free"):
        allocator.free(first[0])
    pages = allocator.allocate(3)
    assert sorted(pages) == [0, 1, 2]
    allocator.share(pages[0])
    allocator.free(pages[0])
    assert allocator.num_free == 0, "a page with an owner must not be free"
    allocator.free(pages[0])
    assert allocator.num_free == 1


class OnePrompt:
    """Prefix cache of a single prompt; stands in for the prefix tree of day 3.4.

    The prompt's length is a multiple of the page size; the cache is its pages' only owner.
    """

    def __init__(self, pages: PageManager, tokens: list[int]):
        self.allocator, self.root = pages.allocator, PrefixNode(None, (), -1)
        self.path: list[PrefixNode] = []
        size, parent = pages.page_size, self.root
        for start in range(0, len(tokens), size):
            [page] = self.allocator.allocate()
            parent = PrefixNode(parent, tuple(tokens[start : start + size]), page)
            self.path.append(parent)
        self.readers = dict.fromkeys(self.path, 0)

    def root_of(self, adapter: int) -> PrefixNode:
        return self.root

    def acquire(self, path: list[PrefixNode]) -> None:
        for node in path:
            self.readers[node] += 1

    def release(self, node: PrefixNode, num_pages: int | None = None) -> None:
        while node.parent is not None:
            self.readers[node] -= 1
            node = node.parent

    @property
    def num_evictable(self) -> int:
        return sum(count == 0 for count in self.readers.values())

    def evict(self, count: int) -> None:
        unread = [node for node in reversed(self.path) if self.readers.get(node) == 0]
        for node in unread[: max(0, count)]:
            del self.readers[node]
            self.allocator.free(node.page)


def pages_with_cached_prompt(num_pages: int) -> tuple[PageManager, OnePrompt]:
    """Page manager; its prefix cache holds tokens 0 to 7 in 2 pages of 4."""
    pages = PageManager(SchedulerConfig(num_pages, 4, 8, 3, 100))
    cache = OnePrompt(pages, list(range(8)))
    pages.cache = cache
    return pages, cache


def request_of(length: int) -> EngineRequest:
    return EngineRequest("new", list(range(length)), GREEDY, 5)


def test_task_2_admission_shares_pages_and_allocates_the_rest():
    pages, cache = pages_with_cached_prompt(6)
    request = request_of(14)
    admitted = pages.admit(request, cache.path, reserve=0)
    assert admitted, "expected admission: 2 new pages are needed and 4 are free"
    shared = [node.page for node in cache.path]
    assert_equal(list(request.page_ids), [*shared, 2, 3], "the shared pages, then new ones")
    assert_equal(request.num_shared, 2, "the path's 2 pages to be shared")
    assert_equal(request.num_computed, 8, "8 computed tokens, those of the 2 shared pages")
    assert request.last_node is cache.path[-1], "expected the path's last node as last_node"
    readers = list(cache.readers.values())
    assert_equal(readers, [1, 1], "one acquire(path), so one reader per shared page")
    assert pages.allocator.num_free == 2
    # Without a hit, the request starts at the root.
    pages, cache = pages_with_cached_prompt(6)
    request = request_of(5)
    admitted = pages.admit(request, [], reserve=0)
    assert admitted, "expected admission: 2 new pages are needed and 4 are free"
    assert_equal(list(request.page_ids), [2, 3], "2 new pages for 5 tokens")
    assert_equal((request.num_shared, request.num_computed), (0, 0), "no shared, computed tokens")
    assert request.last_node is cache.root, "expected root_of(adapter), the first page's parent"


def test_task_2_admission_keeps_shared_pages_and_the_reserve():
    pages, cache = pages_with_cached_prompt(4)
    request = request_of(17)  # needs 5 pages, but the pool has 4
    assert not pages.admit(request, cache.path, reserve=0), (
        "expected no admission: 3 new pages are needed and 2 are free; the path's pages must not "
        "be evicted for them"
    )
    evicted = [node.page for node in cache.path if node not in cache.readers]
    assert evicted == [], f"evicted pages {evicted}, which the request was about to share"
    pages, cache = pages_with_cached_prompt(4)
    admitted = pages.admit(request_of(11), cache.path, reserve=1)
    assert admitted, "expected admission: 1 new page and 1 in reserve do not exceed 2 free pages"
    assert pages.allocator.num_free == 1, "expected the reserve to stay free"


@pytest.mark.parametrize(("length", "reserve"), [(17, 0), (16, 1)])
def test_task_2_refused_admission_changes_nothing(length, reserve):
    pages, cache = pages_with_cached_prompt(4)
    request = request_of(length)
    admitted = pages.admit(request, cache.path, reserve)
    needed = -(-length // 4) - 2
    assert admitted is False, (
        f"expected no admission: {needed} new pages and {reserve} in reserve exceed 2 free pages"
    )
    readers = list(cache.readers.values())
    assert readers == [0, 0], "a refused admission must release the acquired path"
    assert list(request.page_ids) == [], "a waiting request must have no pages"
    assert pages.allocator.num_free == 2, "expected no allocation"


def without_sharing(**changes) -> Scheduler:
    return scheduler(enable_prefix_caching=False, **changes)


def test_task_3_step_mixes_decode_and_prefill():
    sched = without_sharing(max_num_batched_tokens=8)
    add(sched, "a", 5)
    add(sched, "b", 12, first=50)
    for expected in (
        [("a", 0, 5, 0), ("b", 0, 3, 0)],
        [("a", 5, 6, 0), ("b", 3, 10, 0)],
        [("a", 6, 7, 0), ("b", 10, 12, 0)],
        [("a", 7, 8, 0), ("b", 12, 13, 0)],
    ):
        assert step(sched) == expected


def test_task_3_fcfs_admission_within_memory():
    sched = without_sharing(num_pages=6, page_size=4, max_num_batched_tokens=64)
    add(sched, "large", 16, max_tokens=2)
    add(sched, "larger", 20, max_tokens=2)
    add(sched, "small", 1, max_tokens=2, first=99)
    hint = "'small', which would fit, to wait for 'larger'"
    for name in ("large", "large", "larger"):
        assert_equal([chunk[0] for chunk in step(sched)], [name], hint)


def test_task_3_requests_that_do_not_fit():
    sched = without_sharing(num_pages=2, page_size=4)
    # The error names the remaining capacity, 4 output tokens.
    with pytest.raises(UserError, match=r"\b4\b"):
        add(sched, "a", 5, max_tokens=5)
    with pytest.raises(UserError, match="the prompt is empty"):
        add(sched, "b", 0)
    add(sched, "c", 5, max_tokens=4)
    assert [chunk[0] for chunk in step(sched)] == ["c"], "other requests must continue"
    sched = without_sharing(max_seq_len=10)
    with pytest.raises(UserError, match="at most 4 for this prompt"):
        add(sched, "too long", 6, max_tokens=5)
    add(sched, "fits", 6, max_tokens=4)
    default = add(sched, "open", 7, max_tokens=None).max_tokens
    assert_equal(default, 3, "the default max_tokens to be the remaining 3 of 10 tokens")


def test_task_3_at_most_max_num_seqs_run():
    sched = without_sharing(max_num_seqs=2, max_num_batched_tokens=64)
    for name in "abc":
        add(sched, name, 2)
    names = [chunk.request.request_id for chunk in sched.schedule().chunks]
    assert names == ["a", "b"], f"expected 2 running requests, got {names}"


def test_task_3_abort_in_any_state():
    sched = without_sharing(max_num_seqs=1)
    running, waiting = add(sched, "running", 5), add(sched, "waiting", 5)
    plan = sched.schedule()
    sched.finish(running, "abort")
    sched.finish(waiting, "abort")
    sched.update_from_output(plan, {"running": ChunkOutput([1])})
    sched.check_integrity()
    assert running.state is waiting.state is RequestState.FINISHED
    assert sched.pages.allocator.num_free == 16


def test_task_3_one_page_per_running_request_is_reserved():
    sched = without_sharing(num_pages=5, page_size=4, max_num_batched_tokens=64)
    add(sched, "runs", 8, max_tokens=3)
    add(sched, "waits", 12, max_tokens=2, first=50)
    for _ in range(2):
        hint = "'waits' not to be admitted: 3 pages are free, but 1 is reserved for 'runs'"
        assert_equal([chunk[0] for chunk in step(sched)], ["runs"], hint)
    assert sched.num_preemptions == 0
    while sched.has_requests:
        step(sched)
    assert sched.pages.allocator.num_free == 5
    sched = without_sharing(num_pages=8, page_size=4, max_num_batched_tokens=64)
    add(sched, "runs", 8, max_tokens=3)
    add(sched, "too", 8, max_tokens=3, first=30)
    add(sched, "waits", 12, max_tokens=2, first=60)
    hint = "'waits' not to be admitted: it needs 3 of 4 free pages, but 2 are reserved"
    assert_equal([chunk[0] for chunk in step(sched)], ["runs", "too"], hint)


class NothingCached(OnePrompt):
    """Prefix cache without hits; stands in for the prefix tree of day 3.4."""

    def __init__(self, pages: PageManager):
        super().__init__(pages, [])

    def match(self, token_ids: list[int], root: PrefixNode) -> list[PrefixNode]:
        return []


@pytest.mark.parametrize(("first", "admitted"), [(0, ["a"]), (50, ["a", "b", "c"])])
def test_task_3_head_waits_for_the_page_that_it_would_share(first, admitted):
    sched = scheduler(page_size=4, max_num_batched_tokens=64)
    sched.pages.cache = NothingCached(sched.pages)
    add(sched, "a", 9, first=0)
    add(sched, "b", 9, first=first)
    add(sched, "c", 9, first=80)
    names = [chunk.request.request_id for chunk in sched.schedule().chunks]
    assert names == admitted, (
        f"expected the requests {admitted}, got {names}: the head waits while a running request "
        "computes its next page, and no request overtakes it"
    )


def test_task_3_random_workloads():
    # Enough pages for all requests, because preemption is implemented on day 3.4.
    assert run_random_workloads(300, num_pages=500, enable_prefix_caching=False) == 0
