"""Week 3, day 4: the prefix cache and preemption."""

from collections.abc import Sequence

from tests.engine.scheduler_harness import add, run_random_workloads, scheduler, step
from tests.engine.support import PARAGRAPH, chat
from tests.support import assert_equal
from tiny_llm import LLM, SamplingParams
from tiny_llm.engine.scheduling.page_allocator import PageAllocator
from tiny_llm.engine.scheduling.prefix_cache import PrefixCache, PrefixNode
from tiny_llm.engine.scheduling.request import RequestState


class RecordingCache(PrefixCache):
    """Records the pages passed to `acquire`, which is implemented in task 2."""

    def __init__(self, allocator: PageAllocator, page_size: int):
        super().__init__(allocator, page_size)
        self.acquired: list[int] = []

    def acquire(self, path: Sequence[PrefixNode]) -> None:
        self.acquired += [node.page for node in path]


def pages_of(path: Sequence[PrefixNode]) -> list[int]:
    return [node.page for node in path]


def empty_cache(num_pages: int, page_size: int) -> tuple[PageAllocator, PrefixCache]:
    allocator = PageAllocator(num_pages)
    return allocator, PrefixCache(allocator, page_size)


def test_task_1_lookup_matches_the_whole_prefix():
    allocator, cache = empty_cache(8, 4)
    [page], [next_page] = allocator.allocate(), allocator.allocate()
    node = cache.insert(cache.root, tuple("abcd"), page)
    cache.insert(node, tuple("efgh"), next_page)
    assert pages_of(cache.match("abcdefghi")) == [page, next_page]
    assert pages_of(cache.match("abcdefgX!")) == [page], "partial pages must not be shared"
    assert pages_of(cache.match("abcdefgh")) == [page], "at least one token must be left to compute"
    assert cache.match("efghi") == [], "'efgh' was computed after 'abcd', so its keys differ"
    cache.check_integrity()


def test_task_1_inserted_page_is_owned_by_the_tree_too():
    allocator, cache = empty_cache(4, 2)
    [page] = allocator.allocate()
    node = cache.insert(cache.root, (1, 2), page)
    assert (node.page, node.tokens) == (page, (1, 2)), "expected a node of the inserted page"
    assert node.parent is cache.root, "expected the parent passed to insert"
    assert allocator.ref_count(page) == 2, "expected two owners: the request and the prefix tree"
    assert cache.num_pages == 1


def test_task_1_duplicate_page_is_freed_and_existing_one_acquired():
    allocator = PageAllocator(4)
    cache = RecordingCache(allocator, 2)
    first, second = allocator.allocate(2)
    node = cache.insert(cache.root, (1, 2), first)
    again = cache.insert(cache.root, (1, 2), second)
    assert again.page == first, "the second request must use the first one's page"
    assert again is node, "expected the existing node: one node per page of tokens"
    assert allocator.ref_count(second) == 0, "the duplicate page must be freed"
    assert cache.acquired == [first], "expected acquire([existing node])"
    assert cache.num_pages == 1, "expected no new page in the prefix tree"


def test_task_2_least_recently_used_page_is_evicted():
    allocator, cache = empty_cache(4, 2)
    nodes = [
        cache.insert(cache.root, tokens, allocator.allocate()[0]) for tokens in ((1, 2), (3, 4))
    ]
    for node in nodes:
        cache.release(node)
    cache.acquire(cache.match((1, 2, 9)))
    cache.release(nodes[0])
    assert cache.evict(1) == 1
    kept = pages_of(cache.match((1, 2, 9)))
    assert_equal(kept, [nodes[0].page], "(1, 2) to be kept: it was used most recently")
    assert cache.match((3, 4, 9)) == [], "an evicted page must not match"
    assert allocator.num_free == 3, "the evicted page must be free"


def test_task_2_leaf_is_evicted_before_its_parent():
    allocator, cache = empty_cache(8, 4)
    page, next_page = allocator.allocate(2)
    node = cache.insert(cache.root, tuple("abcd"), page)
    node = cache.insert(node, tuple("efgh"), next_page)
    cache.release(node)
    assert cache.num_evictable == 2, "release must cover the path up to the root"
    assert cache.evict(1) == 1
    assert pages_of(cache.match("abcdefghi")) == [page], "the leaf must be evicted first"
    cache.check_integrity()


def test_task_2_referenced_page_is_not_evicted():
    allocator, cache = empty_cache(3, 2)
    first, second = allocator.allocate(2)
    node = cache.insert(cache.root, (1, 2), first)
    cache.release(cache.insert(cache.root, (3, 4), second))
    cache.acquire(cache.match((3, 4, 5)))
    assert_equal(cache.evict(2), 0, "no eviction: `node` and the match of (3, 4) have references")
    cache.release(node)
    cache.check_integrity()
    assert cache.evict(2) == 1, "expected the eviction of page `first`, which has no reference"
    assert allocator.num_free == 2
    assert cache.match((1, 2, 3)) == [], "an evicted page must not match"
    assert pages_of(cache.match((3, 4, 5))) == [second], "a referenced page must not be evicted"


def test_task_2_duplicate_pages_are_merged():
    allocator, cache = empty_cache(4, 2)
    first, second = allocator.allocate(2)
    node = cache.insert(cache.root, (1, 2), first)
    again = cache.insert(cache.root, (1, 2), second)
    assert again.page == node.page, "the second request must use the first one's page"
    assert again is node
    assert allocator.num_free == 3, "the duplicate page must be freed"
    assert_equal(allocator.ref_count(first), 3, "three owners: the prefix tree and two requests")
    cache.release(node)
    assert cache.num_evictable == 0, "expected no evictable page: one request references the node"
    cache.release(again)
    assert cache.num_evictable == 1
    cache.check_integrity()


def test_task_2_shared_prompt_is_computed_once():
    sched = scheduler(max_num_batched_tokens=64)
    for name in "abc":
        add(sched, name, 10)
    assert step(sched) == [("a", 0, 10, 0)]
    assert step(sched) == [("a", 10, 11, 0), ("b", 8, 10, 0), ("c", 8, 10, 0)]
    assert sched.pages.counts(sched.running).shared == 2


def test_task_2_random_workloads():
    assert run_random_workloads(200, num_pages=500, enable_prefix_caching=True) == 0


def test_task_2_cache_hit_is_bitwise_equal(on_cpu, demo):
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=3)
    prompt, other = chat(PARAGRAPH + "Who is the mayor?"), chat(PARAGRAPH + "And the river?")
    llm = LLM(demo, kv_cache_bytes=2**24, block_size=8)
    [cold] = llm.generate(prompt, params)
    [same] = llm.generate(prompt, params)
    [part] = llm.generate(other, params)
    [alone] = LLM(demo, kv_cache_bytes=2**24, enable_prefix_caching=False).generate(other, params)
    assert cold.num_cached_tokens == alone.num_cached_tokens == 0, "expected none at first"
    hits = same.num_cached_tokens, part.num_cached_tokens
    assert hits[0] > hits[1] > 24, f"expected a longer hit for the same prompt, got {hits}"
    for what, cached, computed in (("a full hit", same, cold), ("a partial hit", part, alone)):
        assert cached.token_ids == computed.token_ids, f"{what} must not change the output"
        assert cached.logprobs == computed.logprobs, f"{what} must not change the logprobs"


def test_task_3_youngest_request_is_preempted_and_resumed():
    limits = {"num_pages": 4, "page_size": 4, "max_num_batched_tokens": 16}
    sched = scheduler(**limits, enable_prefix_caching=False)
    old, young = add(sched, "old", 7, max_tokens=8), add(sched, "young", 3, max_tokens=8, first=50)
    while sched.num_preemptions == 0:
        step(sched)
    assert old.state == RequestState.RUNNING, "the oldest request must not be preempted"
    assert young.state == RequestState.PREEMPTED, "expected the youngest request to be preempted"
    assert not young.page_ids, "a preempted request must have no pages"
    token_ids = list(young.token_ids)
    while not old.is_done:
        step(sched)
    recomputed = [("young", 0, len(token_ids), 0)]
    assert_equal(step(sched), recomputed, "prompt and output to be recomputed")
    while sched.has_requests:
        step(sched)
    output = young.token_ids[young.num_prompt_tokens :]
    assert_equal(output, [77] * 8, "the output to survive preemption")
    assert sched.pages.allocator.num_free == 4


def test_task_3_no_admission_in_a_preempting_step():
    # Preempting "young" also frees its draft pages, so it could be readmitted at once.
    limits = {"num_pages": 7, "page_size": 2, "max_num_batched_tokens": 64}
    sched = scheduler(**limits, enable_prefix_caching=False)
    add(sched, "old", 1, max_tokens=3)
    sched.update_draft_tokens(add(sched, "young", 6, max_tokens=7, first=50), [5] * 8)
    while sched.num_preemptions == 0:
        chunks = step(sched)
    names = [chunk[0] for chunk in chunks]
    assert_equal(names, ["old"], "'young' not to be readmitted in the step that preempted it")


def test_task_3_random_workloads():
    for count, options in ((500, {}), (200, {"page_size": 1, "num_pages": 28})):
        preempted = run_random_workloads(count, **options)
        assert preempted > 20, f"expected many preemptions in {count} workloads, got {preempted}"


def test_task_3_preempted_request_is_bitwise_equal(on_cpu, demo):
    params = [
        SamplingParams(temperature=2, seed=seed, max_tokens=40, ignore_eos=True, logprobs=2)
        for seed in range(3)
    ]
    prompts = [[30 + number] * 20 for number in range(3)]

    def generate(tokens: int):
        llm = LLM(demo, kv_cache_bytes=tokens * 8192, block_size=8)
        outputs = llm.generate(prompts, params)
        return [(one.token_ids, one.logprobs) for one in outputs], llm.scheduler.num_preemptions

    ample, num_ample = generate(1000)
    tight, num_tight = generate(104)
    assert_equal(num_ample, 0, "0 preemptions (3 requests of 60 tokens fit 1,000)")
    assert num_tight > 0, "3 requests of 60 tokens exceed 104: expected preemptions, got 0"
    for number, (actual, expected) in enumerate(zip(tight, ample, strict=True)):
        (tokens, logprobs), (expected_tokens, expected_logprobs) = actual, expected
        hint = f"request {number}'s output, as tokens, seed and position survive `_preempt`"
        assert_equal(tokens, expected_tokens, hint)
        hint = f"request {number}'s logprobs: are keys recomputed at the right positions?"
        assert_equal(logprobs, expected_logprobs, hint)
