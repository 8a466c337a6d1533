"""Scheduler snapshots match events and page ownership at every step."""

import json
import random

from tests.engine.simulator import Simulation, random_workload
from tiny_llm.engine.scheduling.events import _tree, snapshot
from tiny_llm.engine.scheduling.page_allocator import PageAllocator
from tiny_llm.engine.scheduling.prefix_cache import PrefixCache


def test_snapshot_matches_scheduler_events():
    rng = random.Random(5)
    num_snapshots = 0
    for _ in range(20):
        simulation = Simulation(random_workload(rng))
        scheduler = simulation.scheduler

        def compare_snapshot(event, scheduler=scheduler):
            nonlocal num_snapshots
            if event["event"] != "step_scheduled":
                return
            num_snapshots += 1
            actual = json.loads(json.dumps(snapshot(scheduler)))
            running = [r for r in actual["requests"] if r["state"] == "running"]
            assert [r["request_id"] for r in running] == event["running"]
            waiting = [r["request_id"] for r in actual["requests"] if r not in running]
            assert waiting == event["waiting"]
            owners: dict[int, int] = {}  # number of owners by page
            for request in running:
                for page in request["pages"]:
                    owners[page] = owners.get(page, 0) + 1
            cached_pages = set(actual["tree"]["pages"])
            assert sum(count > 1 for count in owners.values()) == event["pages"]["shared"]
            assert len(owners) == event["pages"]["used"]
            assert len(cached_pages - set(owners)) == event["pages"]["cached"]
            assert actual["num_pages"] - len(cached_pages | set(owners)) == event["pages"]["free"]

        scheduler.listener = compare_snapshot
        simulation.run()
    assert num_snapshots > 100


def test_branch_labels_start_at_the_first_difference():
    allocator = PageAllocator(8)
    assert allocator.allocate(3) == [0, 1, 2]
    cache = PrefixCache(allocator, page_size=4)
    first = cache.insert(cache.root, (1, 2, 3, 4), 0)
    cache.insert(first, (5, 6, 7, 8), 1)
    cache.insert(first, (5, 6, 9, 8), 2)
    actual = _tree(cache)
    assert dict(zip(actual["pages"], actual["parents"], strict=True)) == {0: -1, 1: 0, 2: 0}
    assert actual["labels"] == {"0": (1, 2, 3, 4), "1": (7, 8), "2": (9, 8)}
