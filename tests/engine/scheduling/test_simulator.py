"""Random workloads: invariants of scheduler, allocator and prefix cache."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.simulator import (
    Arrival,
    Outcome,
    Simulation,
    Workload,
    answer_alone,
    random_groups,
    random_workload,
    with_groups,
    with_window,
)
from tiny_llm.engine.scheduling.config import SchedulerConfig
from tiny_llm.engine.scheduling.kv_cache_groups import GroupPageManager, GroupPrefixCache
from tiny_llm.engine.scheduling.page_allocator import PageAllocator
from tiny_llm.engine.scheduling.page_manager import PageManager
from tiny_llm.engine.scheduling.prefix_cache import PrefixCache
from tiny_llm.engine.scheduling.scheduler import Scheduler


def run_and_compare(workload: Workload, check_every: int = 1) -> Outcome:
    """Runs a workload; compares each output with that of the request alone."""
    outcome = Simulation(workload, check_every).run()
    for request_id, reason in outcome.reasons.items():
        expected = answer_alone(workload.arrivals[int(request_id)])
        output = outcome.answers.get(request_id, [])
        if reason in ("stop", "length"):
            assert output == expected
        else:
            assert reason in ("abort", "error", "rejected")
            assert output == expected[: len(output)]
    return outcome


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
@settings(max_examples=500, deadline=None, derandomize=True)
def test_hypothesis_workloads(rng):
    run_and_compare(random_workload(rng))


@pytest.mark.slow
def test_thousands_of_workloads():
    rng, totals = random.Random(20_251_121), Counter()
    for number in range(6_000):
        outcome = run_and_compare(random_workload(rng), check_every=1 if number % 8 == 0 else 1000)
        totals.update(outcome.reasons.values())
        totals["preemptions"] += outcome.preemptions
        totals["cached"] += outcome.cached_tokens
    # Every finish reason occurs often.
    assert min(totals[reason] for reason in ("stop", "length", "abort", "error", "rejected")) > 400
    assert totals["preemptions"] > 300
    assert totals["cached"] > 6_000


@pytest.mark.slow
@pytest.mark.parametrize("num_state_slots", [0, 7])
def test_memory_shortages_do_not_change_outputs(num_state_slots):
    rng, totals = random.Random(5), Counter()
    for _ in range(400):
        workload = random_workload(rng, num_state_slots=num_state_slots)
        outcome = run_and_compare(replace(workload, shortages=0.3))
        counts = {"evictions": outcome.evictions, "released": outcome.released_pages}
        totals.update(counts, cached=outcome.cached_tokens)
    assert min(totals.values()) > 100, totals


@pytest.mark.slow
@pytest.mark.parametrize("slot_pages", [0.3, 1, 2.5, 5])
@pytest.mark.parametrize("is_fair", [False, True])
def test_pages_and_state_slots_share_the_memory(slot_pages, is_fair):
    rng, totals = random.Random(int(slot_pages)), Counter()
    for _ in range(600):
        workload = random_workload(rng, num_state_slots=int(40 / slot_pages))
        num_pages = workload.config.num_pages + math.ceil(slot_pages * rng.randint(2, 4))
        config = replace(workload.config, num_pages=num_pages, state_slot_pages=slot_pages)
        workload = replace(workload, config=config, is_fair=is_fair)
        outcome = run_and_compare(replace(workload, shortages=rng.choice((0.0, 0.0, 0.3))))
        totals.update(outcome.reasons.values())
        totals["preemptions"] += outcome.preemptions
        totals["cached"] += outcome.cached_tokens
    assert min(totals[name] for name in ("stop", "length", "cached")) > 100, totals
    assert totals["preemptions"] > 0


def test_large_workloads():
    rng = random.Random(7)
    config = SchedulerConfig(
        num_pages=60, page_size=8, max_num_batched_tokens=64, max_num_seqs=16, max_seq_len=400
    )
    for _ in range(2):
        stem = [rng.randrange(9) for _ in range(60)]
        arrivals = [
            Arrival(
                rng.uniform(0, 100),
                stem[: rng.choice((0, 20, 60))] + [rng.randrange(9) for _ in range(40)],
                rng.randint(1, 80),
                rng.randint(1, 80),
                None,
            )
            for _ in range(64)
        ]
        outcome = run_and_compare(Workload(config, arrivals), check_every=10)
        assert set(outcome.reasons.values()) == {"stop", "length"}
        assert outcome.preemptions > 0


@pytest.mark.slow
@pytest.mark.parametrize("is_fair", [False, True])
@pytest.mark.parametrize("groups", ["one window", "several"])
def test_sliding_windows(groups, is_fair):
    """Requests may exceed the KV memory, because old pages are freed."""
    rng, totals = random.Random(20_261_125), Counter()
    for number in range(1_500):
        workload = random_workload(rng)
        if groups == "several":
            workload = with_groups(rng, workload, random_groups(rng))
        else:
            workload = with_window(rng, workload)
        shortages = 0.3 if number % 3 == 0 else 0
        workload = replace(workload, is_fair=is_fair, shortages=shortages)
        outcome = run_and_compare(workload, check_every=1 if number % 8 == 0 else 1000)
        totals.update(outcome.reasons.values())
        totals["preemptions"] += outcome.preemptions
        totals["cached"] += outcome.cached_tokens
        totals["freed"] += outcome.freed_pages
        config, arrivals = workload.config, workload.arrivals
        longest = max((len(a.prompt) + a.max_tokens for a in arrivals), default=0)
        totals["larger"] += longest > config.num_pages // config.block_pages * config.page_size
    assert min(totals[reason] for reason in ("stop", "length", "abort", "error", "rejected")) > 50
    assert totals["preemptions"] > 20
    assert totals["cached"] > 500
    assert totals["freed"] > 5_000
    assert totals["larger"] > 50


# Each fault breaks one invariant; the simulator must detect it.


def leaks_pages(self, request):
    self.cache.release(request.last_node)
    del request.page_ids[:]
    request.last_node = None
    request.num_shared = request.num_computed = 0


def ignores_reference_counts(self, page):
    self._ref_counts[page] = 0
    self._free.append(page)


def matches_whole_prompts(self, token_ids, root):
    node, path, size = root, [], self.page_size
    for start in range(0, len(token_ids), size):
        node = node.children.get(tuple(token_ids[start : start + size]))
        if node is None:
            break
        path.append(node)
    return path


def reverses_running_requests(self):
    self.running.reverse()
    return []


def loses_preempted_requests(self, request):
    self.pages.release(request)
    self.running.remove(request)
    del self._requests[request.request_id]
    self.num_preemptions += 1


def allocates_only_the_first_group(self, request, num_tokens):
    others = request.num_allocated[1:]
    grow(self, request, num_tokens)
    request.num_allocated[1:] = others


share, match = PageManager.share_full_pages, PrefixCache.match
free, grow = GroupPageManager.free_before_window, GroupPageManager.grow
drop = GroupPrefixCache._drop
FAULTS = {
    "skips_reference_counts": (PrefixCache, "acquire", lambda self, path: self._unused.clear()),
    "leaks_pages": (PageManager, "release", leaks_pages),
    "ignores_reference_counts": (PageAllocator, "free", ignores_reference_counts),
    "matches_whole_prompts": (PrefixCache, "match", matches_whole_prompts),
    "ignores_adapters": (PrefixCache, "root_of", lambda self, adapter: self.root),
    "shares_unwritten_pages": (
        *(PageManager, "share_full_pages"),
        lambda self, request, num_written: share(self, request, num_written + 1),
    ),
    "reverses_running_requests": (Scheduler, "_schedule_decoding", reverses_running_requests),
    "loses_preempted_requests": (Scheduler, "_preempt", loses_preempted_requests),
}
GROUP_FAULTS = {
    "frees_pages_early": (
        *(GroupPageManager, "free_before_window"),
        lambda self, request, num_written: free(self, request, num_written + 2),
    ),
    "never_frees_pages": (GroupPageManager, "free_before_window", lambda *args: None),
    "allocates_only_the_first_group": (GroupPageManager, "grow", allocates_only_the_first_group),
    "matches_without_windows": (GroupPrefixCache, "match", match),
    "drops_other_groups": (
        GroupPrefixCache,
        "_drop",
        lambda self, node, group: drop(self, node, 0),
    ),
}


def run_workloads(number: int, has_groups: bool) -> None:
    rng = random.Random(4 if has_groups else 3)
    for _ in range(number):
        workload = random_workload(rng)
        run_and_compare(with_groups(rng, workload, random_groups(rng)) if has_groups else workload)


@pytest.mark.parametrize("name", [*FAULTS, *GROUP_FAULTS])
def test_injected_fault_is_detected(monkeypatch, name):
    monkeypatch.setattr(*(FAULTS | GROUP_FAULTS)[name])
    with pytest.raises((AssertionError, ValueError, KeyError, AttributeError, IndexError)):
        run_workloads(300, name in GROUP_FAULTS)
