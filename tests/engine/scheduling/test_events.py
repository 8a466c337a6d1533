"""Scheduler events: complete, ordered, JSON-serializable."""

import json
import random
from pathlib import Path

import pytest

from tests.engine.simulator import Simulation, random_workload
from tiny_llm.engine.scheduling.events import Recorder
from tiny_llm.errors import UserError


def test_recording_is_complete(tmp_path):
    rng = random.Random(11)
    for _ in range(50):
        simulation = Simulation(random_workload(rng))
        recorder = Recorder(tmp_path / "run.json")
        recorder.begin({"page_size": 3})

        def record(event, recorder=recorder, simulation=simulation):
            recorder({**event, "time": simulation.now})

        simulation.scheduler.listener = record
        outcome = simulation.run()
        assert recorder.close()
        recording = json.loads((tmp_path / "run.json").read_text())
        assert (recording["schema"], recording["version"]) == ("tiny-llm-run", 1)
        assert recording["engine"] == {"page_size": 3}
        replay(recording["events"], simulation, outcome)


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
