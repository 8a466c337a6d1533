"""Scheduler: small cases with the expected steps written out."""

import pytest

from tests.engine.scheduler_harness import GREEDY, add, scheduler, step
from tiny_llm import UserError
from tiny_llm.engine.scheduling.events import Recorder
from tiny_llm.engine.scheduling.outputs import ChunkOutput
from tiny_llm.engine.scheduling.request import EngineRequest, RequestState


def test_decode_and_prefill_share_a_step():
    it = scheduler()
    add(it, "a", 5)
    add(it, "b", 12, first=50)
    assert step(it) == [("a", 0, 5, 0), ("b", 0, 3, 0)]
    assert step(it) == [("a", 5, 6, 0), ("b", 3, 10, 0)]
    add(it, "c", 7, first=90)
    assert step(it) == [("a", 6, 7, 0), ("b", 10, 12, 0), ("c", 0, 5, 0)]
    assert step(it) == [("a", 7, 8, 0), ("b", 12, 13, 0), ("c", 5, 7, 0)]


def test_max_num_seqs_limits_running_requests():
    it = scheduler(max_num_seqs=2)
    for name in "abc":
        add(it, name, 1, first=ord(name))
    assert [chunk[0] for chunk in step(it)] == ["a", "b"]
    it.abort("a")
    assert [chunk[0] for chunk in step(it)] == ["b", "c"]


def test_prefix_cache_hit_on_an_earlier_request():
    it = scheduler(max_num_batched_tokens=64)
    add(it, "a", 10, max_tokens=1)
    step(it)
    second = add(it, "b", 12)
    assert step(it) == [("b", 8, 12, 0)]
    assert second.num_cached_tokens == 8
    same = add(it, "c", 8)
    assert ("c", 4, 8, 0) in step(it), "one page of a fully cached prompt is recomputed"
    assert same.num_cached_tokens == 4
    assert it.pages.counts(it.running).shared == 2


def test_prefix_cache_hit_on_output_tokens():
    it = scheduler(max_num_batched_tokens=64)
    add(it, "a", 3, max_tokens=6)
    while it.has_requests:
        step(it, token=77)
    again = EngineRequest("b", [0, 1, 2, 77, 77, 77, 77, 77, 77, 5], GREEDY, 1)
    it.add(again)
    step(it)
    # The last output token is never computed: 8 of 9 tokens are in pages.
    assert again.num_cached_tokens == 8


def test_disabled_prefix_cache_shares_no_pages():
    it = scheduler(max_num_batched_tokens=64, enable_prefix_caching=False)
    add(it, "a", 10)
    add(it, "b", 10)
    assert step(it) == [("a", 0, 10, 0), ("b", 0, 10, 0)]
    assert it.pages.counts(it.running).shared == 0


def test_identical_prompts_are_computed_once():
    it = scheduler(max_num_batched_tokens=64)
    for name in "abc":
        add(it, name, 10)
    assert step(it) == [("a", 0, 10, 0)]
    assert step(it) == [("a", 10, 11, 0), ("b", 8, 10, 0), ("c", 8, 10, 0)]
    assert it.pages.allocator.num_used == 2 + 3


def test_youngest_request_is_preempted_and_resumes():
    events = Recorder({}, clock=lambda: 0.0)
    it = scheduler(
        events, num_pages=4, page_size=4, max_num_batched_tokens=16, enable_prefix_caching=False
    )
    old, young = add(it, "old", 7, max_tokens=8), add(it, "young", 3, max_tokens=8, first=50)
    assert step(it) == [("old", 0, 7, 0), ("young", 0, 3, 0)]
    while it.num_preemptions == 0:
        step(it)
    assert young.state is RequestState.PREEMPTED
    assert (young.num_computed, len(young.page_ids)) == (0, 0)
    kept = list(young.token_ids)
    while not old.is_done:
        assert young.num_computed == 0
        step(it)
    assert step(it) == [("young", 0, len(kept), 0)]
    assert young.token_ids[: len(kept)] == kept
    names = [event["event"] for event in events.recording()["events"]]
    assert names.count("request_preempted") == 1
    assert names.count("request_admitted") == 3


def test_preempted_request_hits_its_own_pages():
    it = scheduler(num_pages=5, page_size=4, max_num_batched_tokens=16)
    add(it, "old", 8, max_tokens=5)
    young = add(it, "young", 6, max_tokens=6, first=50)
    while young.num_preemptions == 0:
        step(it)
    while not young.num_computed:
        step(it)
    assert young.num_cached_tokens == 0, "hits at its first admission"
    assert young.num_shared > 0
    while it.has_requests:
        step(it)


def test_draft_tokens_are_capped_by_max_tokens():
    it = scheduler(num_drafts=3, max_num_batched_tokens=12)
    add(it, "a", 4, max_tokens=7)
    assert step(it) == [("a", 0, 4, 0)]
    assert step(it, num_tokens=2) == [("a", 4, 5, 3)]
    assert step(it, num_tokens=9) == [("a", 6, 7, 3)]  # 3 + 4 = 7: max_tokens reached
    assert not it.has_requests


def test_draft_tokens_cause_no_preemption():
    it = scheduler(num_pages=4, page_size=2, num_drafts=3, max_num_batched_tokens=12)
    add(it, "a", 3, max_tokens=5)
    add(it, "b", 2, max_tokens=3, first=50)
    step(it)
    plan = step(it)
    assert [chunk[0] for chunk in plan] == ["a", "b"]
    assert it.num_preemptions == 0


def test_abort_in_every_state():
    it = scheduler(max_num_seqs=2, max_num_batched_tokens=6)
    for name in "abc":
        add(it, name, 5, first=ord(name))
    assert it.abort("c")  # waiting
    plan = it.schedule()
    assert it.abort("a")  # while in flight
    it.update_from_output(plan, {"a": ChunkOutput([1])})
    it.check_integrity()
    assert not it.abort("a")
    assert [chunk[0] for chunk in step(it)] == ["b"]
    assert it.abort("b")
    assert not it.has_requests
    assert it.pages.allocator.num_used == it.pages.cache.num_pages


@pytest.mark.parametrize(
    ("length", "max_tokens", "message"),
    [
        (0, 1, "the prompt is empty; give at least one token."),
        (
            20,
            1,
            "the prompt has 20 tokens, but the model's context length is 20 tokens, including the "
            "output.",
        ),
        (
            10,
            11,
            "the prompt has 10 tokens and max_tokens is 11, but the model's context length is 20 "
            "tokens; max_tokens must be at most 10 for this prompt.",
        ),
    ],
)
def test_request_beyond_context_is_rejected(length, max_tokens, message):
    it = scheduler(max_seq_len=20)
    with pytest.raises(UserError) as raised:
        add(it, "a", length, max_tokens)
    assert str(raised.value) == message
    assert not it.has_requests


def test_request_beyond_kv_memory_is_rejected():
    it = scheduler(num_pages=2)
    with pytest.raises(UserError, match="the KV memory holds 8 tokens; max_tokens must be"):
        add(it, "a", 5, 5)
    with pytest.raises(UserError, match="the KV memory holds 8 tokens, including the output"):
        add(it, "b", 9, None)
    add(it, "c", 5, 4)  # the last output token needs no slot
    while it.has_requests:
        step(it)


def test_max_tokens_none_resolves_to_what_fits():
    it = scheduler(num_pages=2)
    assert add(it, "a", 5, None).max_tokens == 4
    assert add(scheduler(max_seq_len=9), "b", 5, None).max_tokens == 4


def test_duplicate_request_id_is_rejected():
    it = scheduler()
    add(it, "a", 3)
    with pytest.raises(UserError, match="request_id 'a' is already used"):
        add(it, "a", 3)
    it.abort("a")
    add(it, "a", 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_pages": 0}, "num_pages must be at least 1, got 0"),
        ({"num_drafts": -1}, "num_drafts must be at least 0, got -1"),
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
