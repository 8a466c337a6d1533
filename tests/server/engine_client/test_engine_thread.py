"""Engine thread: memory pressure, metrics."""

import queue
import threading

import pytest

from tests.engine.hybrid import build, write_hybrid
from tests.server import conftest  # noqa: F401  (skips where the libraries are missing)
from tiny_llm.engine.inputs.sampling_params import SamplingParams
from tiny_llm.engine.llm import LLM
from tiny_llm.server.engine_client import messages
from tiny_llm.server.engine_client.engine_thread import EngineThread, _engine_stats
from tiny_llm.server.engine_client.metrics import Metrics

PARAMS = SamplingParams(max_tokens=2)


class RunningThread:
    """Engine thread with the demo model; records the statistics of its steps."""

    def __init__(self):
        self.command_queue, self._outputs = queue.SimpleQueue(), queue.SimpleQueue()
        self.evictions = queue.SimpleQueue()
        self.thread = EngineThread(lambda: LLM("demo"), self.command_queue, self._on_message)
        self.thread.start()
        self.command_queue.put(messages.LoadModel())

    def _on_message(self, message):
        if isinstance(message, messages.StepReport):
            for output in message.outputs:
                self._outputs.put(output)
            if message.stats.memory_evictions:
                self.evictions.put(message.stats)

    def run(self, name, token_ids=(1, 2, 3)):
        """Runs a request; returns its last output."""
        self.command_queue.put(messages.AddRequest(name, token_ids, PARAMS))
        while True:
            output = self._outputs.get(timeout=60)
            assert output.request_id == name, output
            if output.finish_reason is not None:
                return output


@pytest.fixture
def engine_thread():
    running = RunningThread()
    yield running
    running.command_queue.put(messages.Shutdown())
    running.thread.join(60)


def test_outputs_that_leave_the_thread_are_immutable(engine_thread):
    output = engine_thread.run("one")
    assert output.request_output is None
    with pytest.raises(AttributeError):
        output.text = ""
    with pytest.raises(AttributeError):
        output.metrics.finished_time = 0.0


def test_rejected_request_gets_an_error_as_its_first_output(engine_thread):
    """Admission checks requests, so a rejection is a fault of the server."""
    output = engine_thread.run("bad", ())
    assert output.finish_reason == "error"
    assert output.error == "the prompt is empty; give at least one token."
    assert engine_thread.run("good").finish_reason is not None


def test_unused_memory_is_released_when_idle(monkeypatch, engine_thread):
    trimmed = threading.Event()
    monkeypatch.setattr("tiny_llm.models.memory.TRIM_INTERVAL", 2)
    monkeypatch.setattr("tiny_llm.models.memory.trim_heap", trimmed.set)
    engine_thread.run("one")
    engine_thread.run("two")
    assert trimmed.wait(60)


@pytest.fixture
def is_short(monkeypatch):
    """Event that simulates a shortage of memory."""
    event = threading.Event()
    monkeypatch.setattr("tiny_llm.models.memory.is_memory_short", event.is_set)
    for module in ("engine.core", "server.engine_client.engine_thread"):
        monkeypatch.setattr(f"tiny_llm.{module}.MEMORY_CHECK_INTERVAL", 0.01)
    return event


def test_idle_engine_evicts_cached_prefixes_when_memory_is_short(is_short, engine_thread):
    """Also checks the metric `memory_evictions_total`."""
    engine_thread.run("one", tuple(range(5, 105)))
    is_short.set()
    stats = engine_thread.evictions.get(timeout=60)
    text = Metrics(["demo"]).render({"demo": stats}, {}).decode()
    assert f'memory_evictions_total{{model_name="demo"}} {stats.memory_evictions}.0' in text


def test_metrics_of_state_slots(tmp_path):
    llm = build(str(write_hybrid(tmp_path / "model")), slots=9, block_size=8)
    llm.add_request(list(range(100, 170)), SamplingParams(max_tokens=30, ignore_eos=True))
    for _ in range(4):
        llm.step()
    stats = _engine_stats(llm)
    assert (stats.state_slots, stats.used_state_slots) == (9, 1)
    assert stats.checkpoints == llm.scheduler.pages.states.counts().checkpoints > 0
    text = Metrics(["hybrid"]).render({"hybrid": stats}, {}).decode()
    values = {"state_slots": 9, "state_slots_used": 1, "state_checkpoints": stats.checkpoints}
    for name, value in values.items():
        assert f'tiny_llm:{name}{{model_name="hybrid"}} {value}.0' in text
