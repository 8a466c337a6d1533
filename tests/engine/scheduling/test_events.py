"""Scheduler events and snapshots: complete, ordered, JSON-serializable, consistent."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.engine.simulator import Simulation, random_workload
from tiny_llm.engine.scheduling.events import Recorder, _tree, snapshot
from tiny_llm.engine.scheduling.page_allocator import PageAllocator
from tiny_llm.engine.scheduling.prefix_cache import PrefixCache
from tiny_llm.errors import UserError


def test_recordings_are_complete_and_match_snapshots(tmp_path):
    rng, num_snapshots = random.Random(11), 0
    for _ in range(50):
        simulation = Simulation(random_workload(rng))
        recorder = Recorder(tmp_path / "run.json")
        recorder.begin({"page_size": 3})

        def listener(event, simulation=simulation, recorder=recorder):
            nonlocal num_snapshots
            recorder({**event, "time": simulation.now})
            if event["event"] == "step_scheduled":
                num_snapshots += 1
                compare(json.loads(json.dumps(snapshot(simulation.scheduler))), event)

        simulation.scheduler.listener = listener
        outcome = simulation.run()
        assert recorder.close()
        recording = json.loads((tmp_path / "run.json").read_text())
        assert (recording["schema"], recording["version"]) == ("tiny-llm-run", 1)
        assert recording["engine"] == {"page_size": 3}
        replay(recording["events"], simulation, outcome)
    assert num_snapshots > 100


def compare(actual, event) -> None:
    """Compares a snapshot with a step's event."""
    running = [r for r in actual["requests"] if r["state"] == "running"]
    assert [r["request_id"] for r in running] == event["running"]
    waiting = [r["request_id"] for r in actual["requests"] if r not in running]
    assert waiting == event["waiting"]
    owners = Counter(page for request in running for page in request["pages"])
    cached_pages = set(actual["tree"]["pages"])
    assert sum(count > 1 for count in owners.values()) == event["pages"]["shared"]
    assert len(owners) == event["pages"]["used"]
    assert len(cached_pages - set(owners)) == event["pages"]["cached"]
    assert actual["num_pages"] - len(cached_pages | set(owners)) == event["pages"]["free"]


def replay(events, simulation, outcome) -> None:
    times = [event["time"] for event in events]
    assert times == sorted(times)
    outputs, ended, running = {}, {}, set()
    for event in events:
        name = event["event"]
        if name == "request_added":
            outputs[event["request_id"]] = []
        elif name == "request_admitted":
            running.add(event["request_id"])
        elif name == "request_preempted":
            running.remove(event["request_id"])
        elif name == "tokens_added":
            outputs[event["request_id"]] += event["token_ids"]
            assert event["accepted"] == len(event["token_ids"]) - 1
        elif name == "request_ended":
            assert event["request_id"] not in ended
            ended[event["request_id"]] = event["reason"]
            running.discard(event["request_id"])
        elif name == "step_scheduled":
            assert set(event["running"]) == running
            pages = event["pages"]
            total = simulation.config.num_pages
            assert pages["free"] + pages["cached"] + pages["used"] == total
            assert 0 <= pages["shared"] <= pages["used"]
    assert outputs == outcome.answers
    assert ended == {key: reason for key, reason in outcome.reasons.items() if reason != "rejected"}


@pytest.mark.parametrize(
    "file", ["/no/such/folder/run.json", f"/tmp/{'n' * 300}", "n" * 252, "/dev/null"]
)
def test_unwritable_recording_is_rejected(file):
    with pytest.raises(UserError, match="recording '.*' (cannot be written|is not a regular)"):
        Recorder(Path(file))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_ends_only_the_recording(tmp_path, caplog):
    (tmp_path / "run.json.part").symlink_to("/dev/full")
    recorder = Recorder(tmp_path / "run.json")
    recorder.begin({})
    for _ in range(2):
        recorder({"event": "request_added", "text": "x" * 100_000})
    assert not recorder.close()
    assert not (tmp_path / "run.json").exists()
    assert "recording stopped" in caplog.text


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
