"""Random workloads: invariants of scheduler, allocator and prefix cache."""

import math
import random
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from tests.engine.simulator import (
    Arrival,
    Workload,
    random_groups,
    random_workload,
    run_and_compare,
    with_groups,
)
from tiny_llm.engine.scheduling.config import KvGroup, SchedulerConfig

SLOT_COUNTS = (2, 3, 4, 6, 10, 20)


def with_states(rng: random.Random) -> Workload:
    return random_workload(rng, rng.choice((6, 12)), rng.choice(SLOT_COUNTS))


def with_shortages(rng: random.Random, num_state_slots: int) -> Workload:
    return replace(random_workload(rng, num_state_slots=num_state_slots), shortages=0.3)


def with_shared_memory(rng: random.Random, slot_pages: float, is_fair: bool) -> Workload:
    """Pages and state slots share the memory."""
    workload = random_workload(rng, num_state_slots=int(40 / slot_pages))
    num_pages = workload.config.num_pages + math.ceil(slot_pages * rng.randint(2, 4))
    config = replace(workload.config, num_pages=num_pages, state_slot_pages=slot_pages)
    shortages = rng.choice((0.0, 0.0, 0.3))
    return replace(workload, config=config, shortages=shortages, is_fair=is_fair)


def with_windows(rng: random.Random, has_groups: bool, is_fair: bool) -> Workload:
    """Requests may exceed the KV memory, because old pages are freed."""
    workload = random_workload(rng)
    groups = random_groups(rng) if has_groups else (KvGroup(rng.randint(1, 8)),)
    workload = with_groups(rng, workload, groups)
    return replace(workload, shortages=rng.choice((0.0, 0.0, 0.3)), is_fair=is_fair)


def fair(rng: random.Random, num_state_slots: int) -> Workload:
    workload = random_workload(rng, num_state_slots=num_state_slots)
    target, min_chunk = rng.choice((None, 0.5, 1.2, 2.0)), rng.choice((1, 1, 3))
    return replace(workload, is_fair=True, step_time_target=target, min_chunk=min_chunk)


# A function that draws a workload, their number, the interval of those whose integrity is checked
# at every step, and bounds that their totals exceed.
REASONS = ("stop", "length", "abort", "error", "rejected")
HITS = {"preemptions": 150, "cached_tokens": 5_000}
MORE_HITS = {"preemptions": 300, "cached_tokens": 6_000}
LARGER = {"preemptions": 20, "cached_tokens": 500, "freed_pages": 5_000, "exceeds_memory": 50}
WORKLOADS = {
    "plain": (random_workload, 6_000, 8, dict.fromkeys(REASONS, 400) | MORE_HITS),
    "states": (with_states, 3_000, 1, dict.fromkeys(REASONS, 200) | HITS),
}
for slots in (0, 7):
    WORKLOADS[f"shortages, {slots} slots"] = (
        partial(with_shortages, num_state_slots=slots),
        400,
        1,
        dict.fromkeys(("evictions", "released_pages", "cached_tokens"), 100),
    )
    WORKLOADS[f"fair, {slots} slots"] = (
        partial(fair, num_state_slots=slots),
        2_000,
        8,
        dict.fromkeys(REASONS[:4], 100)
        | dict.fromkeys(("preemptions", "overtaken", "long_steps"), 50),
    )
for is_fair in (False, True):
    for slot_pages in (0.3, 1, 2.5, 5):
        WORKLOADS[f"{slot_pages} pages per slot, fair {is_fair}"] = (
            partial(with_shared_memory, slot_pages=slot_pages, is_fair=is_fair),
            600,
            1,
            {"stop": 100, "length": 100, "cached_tokens": 100, "preemptions": 0},
        )
    for has_groups in (False, True):
        WORKLOADS[f"windows, groups {has_groups}, fair {is_fair}"] = (
            partial(with_windows, has_groups=has_groups, is_fair=is_fair),
            1_500,
            8,
            dict.fromkeys(REASONS, 50) | LARGER,
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_random_workloads(name):
    draw, number, interval, more_than = WORKLOADS[name]
    rng, totals = random.Random(20_261_125), Counter()
    for index in range(number):
        outcome = run_and_compare(draw(rng), check_every=1000 if index % interval else 1)
        totals += outcome.totals
    assert all(totals[total] > bound for total, bound in more_than.items()), totals


@pytest.mark.slow
def test_ample_slots_hit_nearly_as_often_as_pages():
    rng, pages, states = random.Random(5), 0, 0
    for _ in range(1_000):
        workload = random_workload(rng, 12)
        pages += run_and_compare(workload).cached_tokens
        config = replace(workload.config, num_state_slots=200)
        states += run_and_compare(replace(workload, config=config)).cached_tokens
    assert states > 0.7 * pages


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
