"""Engine thread: grammar compilation, memory pressure, metrics."""

import queue
import threading

import pytest

from tests.engine.hybrid import build, write_hybrid
from tests.server import conftest  # noqa: F401  (skips where the libraries are missing)
from tiny_llm.engine.inputs.sampling_params import SamplingParams
from tiny_llm.engine.inputs.structured_outputs import StructuredOutputs
from tiny_llm.engine.llm import LLM
from tiny_llm.engine.scheduling.outputs import StreamOutput
from tiny_llm.errors import UserError
from tiny_llm.server.engine_client import messages
from tiny_llm.server.engine_client.engine_thread import EngineThread, _engine_stats
from tiny_llm.server.engine_client.metrics import Metrics

UNCONSTRAINED = SamplingParams(max_tokens=2)
CONSTRAINED = SamplingParams(max_tokens=2, structured_outputs=StructuredOutputs(choice=["yes"]))


class ThreadWithBlockedCompiler:
    """Engine thread that compiles no grammar until `allow_compilation` is set."""

    def __init__(self):
        self.allow_compilation = threading.Event()
        self.error = None
        self.command_queue = queue.SimpleQueue()
        self._updates = queue.SimpleQueue()
        self.thread = EngineThread(self._load, self.command_queue, self._on_message)
        self.thread.start()
        self.command_queue.put(messages.LoadModel())

    def _load(self):
        llm = LLM("demo")
        compile_grammar = llm.grammars.compile

        def wait_and_compile(*args):
            assert self.allow_compilation.wait(60)
            if self.error is not None:
                raise self.error
            return compile_grammar(*args)

        llm.grammars.compile = wait_and_compile
        return llm

    def _on_message(self, message):
        if isinstance(message, messages.StepReport):
            for update in message.updates:
                self._updates.put(update)

    def submit(self, name, params):
        self.command_queue.put(messages.AddRequest(name, (1, 2, 3), params))

    def wait_for_update(self, kind, name):
        """Waits for a request's next update of type `kind`; discards other types."""
        while True:
            update = self._updates.get(timeout=60)
            assert update.request_id == name, update
            if isinstance(update, kind):
                return update


@pytest.fixture
def engine_thread():
    thread = ThreadWithBlockedCompiler()
    yield thread
    thread.command_queue.put(messages.Shutdown())
    thread.thread.join(60)


def test_grammar_compilation_does_not_delay_other_requests(engine_thread):
    engine_thread.submit("constrained", CONSTRAINED)
    engine_thread.submit("plain", UNCONSTRAINED)
    while engine_thread.wait_for_update(StreamOutput, "plain").finish_reason is None:
        pass
    engine_thread.allow_compilation.set()
    engine_thread.wait_for_update(messages.RequestAccepted, "constrained")
    while engine_thread.wait_for_update(StreamOutput, "constrained").finish_reason is None:
        pass


def test_request_aborted_during_compilation_is_not_started(engine_thread):
    engine_thread.submit("constrained", CONSTRAINED)
    engine_thread.command_queue.put(messages.AbortRequest("constrained"))
    engine_thread.wait_for_update(messages.RequestRejected, "constrained")
    engine_thread.allow_compilation.set()
    engine_thread.submit("plain", UNCONSTRAINED)
    engine_thread.wait_for_update(messages.RequestAccepted, "plain")


@pytest.mark.slow
@pytest.mark.parametrize("error", [UserError("it is bad."), RuntimeError("/secret/path")])
def test_grammar_error_fails_only_its_request(engine_thread, error):
    engine_thread.error = error
    engine_thread.allow_compilation.set()
    engine_thread.submit("constrained", CONSTRAINED)
    reason = engine_thread.wait_for_update(messages.RequestRejected, "constrained").reason
    assert "/secret" not in reason
    assert reason.endswith(".")
    engine_thread.submit("plain", UNCONSTRAINED)
    engine_thread.wait_for_update(messages.RequestAccepted, "plain")


def test_unused_memory_is_released_when_idle(monkeypatch, engine_thread):
    trimmed = threading.Event()
    monkeypatch.setattr("tiny_llm.models.memory.TRIM_INTERVAL", 2)
    monkeypatch.setattr("tiny_llm.models.memory.trim_heap", trimmed.set)
    engine_thread.submit("one", UNCONSTRAINED)
    while engine_thread.wait_for_update(StreamOutput, "one").finish_reason is None:
        pass
    engine_thread.submit("two", UNCONSTRAINED)
    engine_thread.wait_for_update(messages.RequestAccepted, "two")
    assert trimmed.wait(60)


def test_idle_engine_evicts_cached_prefixes_when_memory_is_short(monkeypatch):
    """Also checks the metric `memory_evictions_total`."""
    is_short, evicted = threading.Event(), queue.SimpleQueue()
    monkeypatch.setattr("tiny_llm.models.memory.is_memory_short", is_short.is_set)
    for module in ("engine.core", "server.engine_client.engine_thread"):
        monkeypatch.setattr(f"tiny_llm.{module}.MEMORY_CHECK_INTERVAL", 0.01)
    on_message = ThreadWithBlockedCompiler._on_message

    def record(self, message):
        on_message(self, message)
        if isinstance(message, messages.StepReport) and message.stats.memory_evictions:
            evicted.put(message.stats)

    monkeypatch.setattr(ThreadWithBlockedCompiler, "_on_message", record)
    thread = ThreadWithBlockedCompiler()
    thread.command_queue.put(messages.AddRequest("one", tuple(range(5, 105)), UNCONSTRAINED))
    while thread.wait_for_update(StreamOutput, "one").finish_reason is None:
        pass
    is_short.set()
    stats = evicted.get(timeout=60)
    text = Metrics(["demo"]).render({"demo": stats}, {}).decode()
    assert f'memory_evictions_total{{model_name="demo"}} {stats.memory_evictions}.0' in text
    thread.command_queue.put(messages.Shutdown())
    thread.thread.join(60)


def test_metrics_of_state_slots(tmp_path):
    llm = build(str(write_hybrid(tmp_path / "model")), slots=9, block_size=8)
    llm.add_request(list(range(100, 170)), SamplingParams(max_tokens=30, ignore_eos=True))
    for _ in range(4):
        llm.step()
    stats = _engine_stats(llm)
    assert (stats.state_slots, stats.used_state_slots) == (9, 1)
    assert stats.checkpoints == llm.scheduler.pages.states.counts().checkpoints > 0
    text = Metrics(["hybrid"]).render({"hybrid": stats}, {}).decode()
    assert 'tiny_llm:state_slots{model_name="hybrid"} 9.0' in text
    assert 'tiny_llm:state_slots_used{model_name="hybrid"} 1.0' in text
    assert f'tiny_llm:state_checkpoints{{model_name="hybrid"}} {stats.checkpoints}.0' in text
