"""Scheduler: small cases with explicit steps, beyond those of days 3.3 and 3.4."""

import pytest

from tests.engine.scheduler_harness import GREEDY, add, finish, scheduler, step
from tiny_llm import UserError
from tiny_llm.engine.scheduling.request import ChunkOutput, EngineRequest


def test_prefix_cache_hit_on_output_tokens():
    sched = scheduler(max_num_batched_tokens=64)
    add(sched, "a", 3, max_tokens=6)
    finish(sched)
    follow_up = EngineRequest("b", [0, 1, 2, 77, 77, 77, 77, 77, 77, 5], GREEDY, 1)
    sched.add(follow_up)
    step(sched)
    # The last output token is never computed, so 8 of 9 tokens are in pages.
    assert follow_up.num_cached_tokens == 8


def test_requests_that_load_from_disk_do_not_delay_the_next_in_the_queue():
    sched = scheduler()
    loads = {"a": 4, "b": 8}
    sched.start_load = lambda request: loads.get(request.request_id, 0)
    requests = [add(sched, name, 10, first=ord(name)) for name in "abc"]
    assert step(sched) == [("c", 0, 8, 0)]
    sched.finish_load(requests[0], 4)
    assert step(sched) == [("a", 4, 10, 0), ("c", 8, 10, 0)]


def test_request_waits_for_a_load_of_its_next_page():
    sched = scheduler()
    sched.start_load = lambda request: 8 if request.request_id == "a" else 0
    first, *_ = [add(sched, name, 10) for name in "ab"]
    assert step(sched) == []
    sched.finish_load(first, 8)
    assert step(sched) == [("a", 8, 10, 0), ("b", 8, 10, 0)]


def test_disabled_prefix_cache_shares_no_pages():
    sched = scheduler(max_num_batched_tokens=64, enable_prefix_caching=False)
    add(sched, "a", 10)
    add(sched, "b", 10)
    assert step(sched) == [("a", 0, 10, 0), ("b", 0, 10, 0)]
    assert sched.pages.counts(sched.running).shared == 0


def test_preempted_request_hits_its_own_pages():
    sched = scheduler(num_pages=5, page_size=4, max_num_batched_tokens=16)
    add(sched, "old", 8, max_tokens=5)
    young = add(sched, "young", 6, max_tokens=6, first=50)
    while young.num_preemptions == 0:
        step(sched)
    while not young.num_computed:
        step(sched)
    assert young.num_cached_tokens == 0, (
        "num_cached_tokens must count only hits at the first admission"
    )
    assert young.num_shared > 0
    finish(sched)


def test_draft_tokens_are_capped_by_max_tokens():
    sched = scheduler(num_drafts=3, max_num_batched_tokens=12)
    add(sched, "a", 4, max_tokens=7)
    assert step(sched) == [("a", 0, 4, 0)]
    assert step(sched, num_tokens=2) == [("a", 4, 5, 3)]
    # The output has 3 tokens, so 3 draft tokens and a sampled one reach max_tokens, which is 7.
    assert step(sched, num_tokens=9) == [("a", 6, 7, 3)]
    assert not sched.has_requests


def test_draft_tokens_cause_no_preemption():
    sched = scheduler(num_pages=4, page_size=2, num_drafts=3, max_num_batched_tokens=12)
    add(sched, "a", 3, max_tokens=5)
    add(sched, "b", 2, max_tokens=3, first=50)
    step(sched)
    assert [chunk[0] for chunk in step(sched)] == ["a", "b"]
    assert sched.num_preemptions == 0


def test_draft_tokens_without_a_draft_model_take_half_of_the_spare_budget():
    sched = scheduler(max_num_batched_tokens=12)
    drafts = [77] * 9
    for name in "ab":
        sched.update_draft_tokens(add(sched, name, 4, max_tokens=50, first=ord(name)), drafts)
    step(sched)
    assert step(sched) == [("a", 4, 5, 5), ("b", 4, 5, 0)]


def test_interrupted_step_is_computed_again():
    sched = scheduler()
    a, b = (add(sched, name, 3, first=ord(name)) for name in "ab")
    step(sched)
    sched.requeue(sched.schedule())
    assert ([*sched.waiting], sched.running) == ([a, b], [])
    assert sched.num_preemptions == 2
    sched.check_integrity()
    assert step(sched) == [("a", 0, 4, 0), ("b", 0, 4, 0)]


def test_abort_in_every_state():
    sched = scheduler(max_num_seqs=2, max_num_batched_tokens=6)
    a, b, c = (add(sched, name, 5, first=ord(name)) for name in "abc")
    sched.finish(c, "abort")  # while it is waiting
    scheduled = sched.schedule()
    sched.finish(a, "abort")  # while the step is in flight
    sched.update_from_output(scheduled, {"a": ChunkOutput([1])})
    sched.check_integrity()
    sched.finish(a, "stop")
    assert a.finish_reason == "abort"
    assert [chunk[0] for chunk in step(sched)] == ["b"]
    sched.finish(b, "abort")
    assert not sched.has_requests
    assert sched.pages.allocator.num_used == sched.pages.cache.num_pages


CONTEXT, MEMORY = {"max_seq_len": 20}, {"num_pages": 2}
TOO_LONG = "the prompt has 20 tokens, but the model's context length is 20 tokens, including the "
TOO_MANY = (
    "the prompt has 10 tokens and max_tokens is 11, but the model's context length is 20 tokens; "
)


@pytest.mark.parametrize(
    ("changes", "length", "max_tokens", "message"),
    [
        (CONTEXT, 0, 1, "the prompt is empty; give at least one token."),
        (CONTEXT, 20, 1, f"{TOO_LONG}output."),
        (CONTEXT, 10, 11, f"{TOO_MANY}max_tokens must be at most 10 for this prompt."),
        (MEMORY, 5, 5, "the KV memory holds 8 tokens; max_tokens must be"),
        (MEMORY, 9, None, "the KV memory holds 8 tokens, including the output"),
    ],
)
def test_oversized_request_is_rejected(changes, length, max_tokens, message):
    sched = scheduler(**changes)
    with pytest.raises(UserError, match=message):
        add(sched, "a", length, max_tokens)
    assert not sched.has_requests


def test_max_tokens_none_resolves_to_the_maximum_that_fits():
    # The last output token needs no KV slot.
    assert add(scheduler(num_pages=2), "a", 5, None).max_tokens == 4
    assert add(scheduler(max_seq_len=9), "b", 5, None).max_tokens == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_pages": 0}, "num_pages must be at least 1, got 0"),
        ({"num_drafts": -1}, "num_drafts must be at least 0, got -1"),
        ({"num_state_slots": 1}, "num_state_slots must be at least 2, got 1"),
        (
            {"max_num_seqs": 9},
            "max_num_batched_tokens must be at least 9 for max_num_seqs=9 .*, got 8",
        ),
        ({"num_drafts": 4}, r"at least 15 for max_num_seqs=3 \(1 \+ 4 draft tokens each\), got 8"),
    ],
)
def test_invalid_config_is_rejected(changes, message):
    with pytest.raises(UserError, match=message):
        scheduler(**changes)
