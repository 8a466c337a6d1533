"""State slots and checkpoints: ownership, placement, eviction."""

import random
from dataclasses import replace

from tests.engine.scheduler_harness import add, finish, scheduler, serve, step
from tests.engine.simulator import Arrival, Simulation, Workload
from tiny_llm.engine.scheduling.config import SchedulerConfig
from tiny_llm.engine.scheduling.scheduler import Scheduler
from tiny_llm.engine.scheduling.state_slots import CHECKPOINT_INTERVAL


def checkpoint_positions(sched: Scheduler) -> list[int]:
    positions = []
    for node in sched.pages.states.checkpoints.by_node:
        depth = 0
        while node.parent is not None:
            depth, node = depth + 1, node.parent
        positions.append(depth * sched.config.page_size)
    return sorted(positions)


def test_queued_requests_wait_for_the_states_they_can_share():
    for num_tokens, branch, expected in ((57, 17, [0, 16, 16]), (30, 30, [0, 28, 28])):
        sched = scheduler(num_state_slots=12, num_pages=60, max_num_batched_tokens=8)
        requests = [add(sched, name, num_tokens, 1) for name in "abc"]
        for number, request in enumerate(requests):
            request.token_ids[branch:] = [100 + number] * (num_tokens - branch)
        finish(sched)
        assert [request.num_cached_tokens for request in requests] == expected


def test_rolling_checkpoint_follows_the_output():
    sched = scheduler(num_state_slots=8, page_size=4, max_seq_len=200, num_pages=50)
    request = add(sched, "a", 20, 60)
    for _ in range(30):
        step(sched)
    positions = checkpoint_positions(sched)
    assert positions[-1] == request.num_computed // 4 * 4
    # Two checkpoints are at the end of the prompt; each rolling checkpoint replaces the
    # previous one.
    assert len(positions) <= 6
    finish(sched)
    history = list(request.token_ids)
    turn = serve(sched, "b", [*history, *range(500, 510)], 1)
    assert turn.num_cached_tokens == (len(history) - 1) // 4 * 4


def test_long_prompts_are_checkpointed_at_intervals_while_slots_are_free():
    length = 2 * CHECKPOINT_INTERVAL + 100
    options = {"page_size": 32, "num_pages": 200, "max_seq_len": 9_000}
    options["max_num_batched_tokens"] = 300
    ample, few = scheduler(num_state_slots=20, **options), scheduler(num_state_slots=4, **options)
    for sched in (ample, few):
        serve(sched, "short", [7] * 100, 1)
        serve(sched, "long", length, 1)
    assert {CHECKPOINT_INTERVAL, 2 * CHECKPOINT_INTERVAL} <= set(checkpoint_positions(ample))
    assert few.pages.states.counts().checkpoints <= 4
    edited = [*range(CHECKPOINT_INTERVAL + 50), *[7] * 100]
    assert serve(ample, "edited", edited, 1).num_cached_tokens == CHECKPOINT_INTERVAL


def test_requests_that_share_nothing_write_few_extra_states():
    rng = random.Random(6)
    sizes = {"max_num_batched_tokens": 256, "max_num_seqs": 8, "max_seq_len": 4_000}
    config = SchedulerConfig(num_pages=400, page_size=32, num_state_slots=12, **sizes)
    arrivals = [
        Arrival(index, [rng.randrange(1_000) for _ in range(rng.randint(20, 300))], 100, 100, None)
        for index in range(15)
    ]
    writes = {}
    for caching in (True, False):
        workload = Workload(replace(config, enable_prefix_caching=caching), arrivals, 0.0)
        simulation = Simulation(workload)
        simulation.scheduler.update_draft_tokens = lambda request, token_ids: None
        writes[caching] = simulation.run().state_writes
    assert writes[True] <= writes[False] + 2 * len(arrivals)


def test_drafts_leave_slots_for_queued_requests():
    sched = scheduler(num_state_slots=5, num_drafts=3, max_num_batched_tokens=12)
    add(sched, "a", 5, 30)
    step(sched)
    assert step(sched, num_tokens=4) == [("a", 5, 6, 3)]
    add(sched, "b", 5, 30, first=50)
    [a, b] = step(sched)
    assert (a, b[:3]) == (("a", 9, 10, 2), ("b", 0, 5))


def test_drafts_evict_few_checkpoints():
    sched = scheduler(num_state_slots=16, num_drafts=12, max_num_batched_tokens=64, num_pages=200)
    for number in range(12):
        serve(sched, str(number), [number] * 30, 1)
    assert sched.pages.states.counts().free <= 1
    add(sched, "a", 5, 30, first=50)
    step(sched)
    [(_, _, _, num_drafts)] = step(sched)
    assert num_drafts == 4
    assert sched.pages.states.counts().checkpoints >= 11


def test_state_slot_counts_in_events():
    events = []
    sched = scheduler(events.append, num_state_slots=8)
    add(sched, "a", 15, 6)
    finish(sched)
    counts = [event for event in events if event["event"] == "state_slot_counts"]
    assert len(counts) > 5
    assert all(c["free"] + c["cached"] + c["used"] == 8 for c in counts)
    assert counts[-1]["checkpoints"] > 0
    events.clear()
    sched = scheduler(events.append)
    add(sched, "a", 15, 6)
    step(sched)
    assert "state_slot_counts" not in {event["event"] for event in events}
