"""Injected scheduler faults, which the simulator must detect."""

import random
from dataclasses import replace

import pytest

from tests.engine.scheduling.test_simulator import with_states
from tests.engine.simulator import random_groups, random_workload, run_and_compare, with_groups
from tiny_llm import OutOfPagesError
from tiny_llm.engine.scheduling.checkpoints import Checkpoints
from tiny_llm.engine.scheduling.kv_cache_groups import GroupPageManager, GroupPrefixCache
from tiny_llm.engine.scheduling.page_allocator import PageAllocator
from tiny_llm.engine.scheduling.page_manager import PageManager
from tiny_llm.engine.scheduling.prefix_cache import PrefixCache
from tiny_llm.engine.scheduling.scheduler import Scheduler
from tiny_llm.engine.scheduling.state_slots import StateSlots


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
    "skips reference counts": (PrefixCache, "acquire", lambda self, path: self._unused.clear()),
    "leaks pages": (PageManager, "release", leaks_pages),
    "ignores reference counts": (PageAllocator, "free", ignores_reference_counts),
    "matches whole prompts": (PrefixCache, "match", matches_whole_prompts),
    "ignores adapters": (PrefixCache, "root_of", lambda self, adapter: self.root),
    "shares unwritten pages": (
        *(PageManager, "share_full_pages"),
        lambda self, request, num_written: share(self, request, num_written + 1),
    ),
    "reverses running requests": (
        *(Scheduler, "_schedule_decoding"),
        lambda self: self.running.reverse() or [],
    ),
    "loses preempted requests": (Scheduler, "_preempt", loses_preempted_requests),
}
GROUP_FAULTS = {
    "frees pages early": (
        *(GroupPageManager, "free_before_window"),
        lambda self, request, num_written: free(self, request, num_written + 2),
    ),
    "never frees pages": (GroupPageManager, "free_before_window", lambda *args: None),
    "allocates only the first group": (GroupPageManager, "grow", allocates_only_the_first_group),
    "matches without windows": (GroupPrefixCache, "match", match),
    "drops other groups": (GroupPrefixCache, "_drop", lambda self, node, _: drop(self, node, 0)),
}


def writes_checkpoints_in_place(self, running, waiting):
    self._num_reserved = self._num_drafts = 0


def keeps_the_state_after_all_drafts(self, chunk):
    request = chunk.request
    num_computed, request.num_computed = request.num_computed, chunk.end + chunk.num_drafts
    update(self, chunk)
    request.num_computed = num_computed


def keeps_checkpoints(self, node):
    if node.parent.children.get(node.tokens) is node and node.children:
        discard(self, node)


def leaks_draft_slots(self, request):
    if request.state_slots is not None:
        request.state_slots.reserved.clear()
    release(self, request)


def leaves_the_read_slot_unshared(self, request):
    admit(self, request)
    slots = request.state_slots
    if slots is not None and slots.next >= 0:
        self._allocator.free(slots.current)


def reads_the_written_slot(self, chunk, head):
    planned = plan(self, chunk, head)
    return replace(planned, state_read_slot=planned.state_writes[-1][1] if chunk.start else -1)


def drafts_from_current(self, chunk, head):
    planned = plan(self, chunk, head)
    return replace(planned, draft_state_read_slot=planned.state_read_slot)


update, release, admit = StateSlots.update, StateSlots.release, StateSlots.admit
plan, discard = StateSlots._plan_chunk, Checkpoints.discard
STATE_FAULTS = {
    "hits without a checkpoint": (StateSlots, "up_to_checkpoint", lambda self, path: path),
    "writes checkpoints in place": (StateSlots, "begin_step", writes_checkpoints_in_place),
    "keeps the state after all drafts": (StateSlots, "update", keeps_the_state_after_all_drafts),
    "keeps checkpoints of evicted pages": (Checkpoints, "discard", keeps_checkpoints),
    "leaks draft slots": (StateSlots, "release", leaks_draft_slots),
    "leaves the read slot unshared": (StateSlots, "admit", leaves_the_read_slot_unshared),
    "reads the written slot": (StateSlots, "_plan_chunk", reads_the_written_slot),
    "the draft model reads the current state": (StateSlots, "_plan_chunk", drafts_from_current),
}


@pytest.mark.parametrize("name", [*FAULTS, *GROUP_FAULTS, *STATE_FAULTS])
def test_injected_fault_is_detected(monkeypatch, name):
    monkeypatch.setattr(*(FAULTS | GROUP_FAULTS | STATE_FAULTS)[name])
    rng = random.Random(4 if name in GROUP_FAULTS else 3)
    errors = (AssertionError, ValueError, KeyError, AttributeError, IndexError, OutOfPagesError)
    with pytest.raises(errors):  # noqa: PT012
        for _ in range(400):
            workload = with_states(rng) if name in STATE_FAULTS else random_workload(rng)
            if name in GROUP_FAULTS:
                workload = with_groups(rng, workload, random_groups(rng))
            run_and_compare(workload)
