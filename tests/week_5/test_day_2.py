"""Week 5, day 2, optional: bounded output queue, engine thread, coalescing."""

import asyncio
import queue
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the server's dependencies")

from tests.support import assert_equal
from tiny_llm.engine.inputs.sampling_params import SamplingParams
from tiny_llm.engine.scheduling.request import StreamOutput
from tiny_llm.errors import UserError
from tiny_llm.server.engine_client import engine_thread
from tiny_llm.server.engine_client.engine_thread import EngineThread
from tiny_llm.server.engine_client.messages import (
    AbortRequest,
    AddRequest,
    EngineStats,
    Precompute,
    Shutdown,
    StepReport,
    UnloadModel,
)
from tiny_llm.server.engine_client.request_stream import Coalescer, RequestStream, merge_outputs
from tiny_llm.server.http.errors import ApiError

PARAMS = SamplingParams(max_tokens=9)


def output(text: str, index: int = 0, request_id: str = "0", **fields: Any) -> StreamOutput:
    return StreamOutput(request_id, index, text, tuple(map(ord, text)), None, **fields)


def request_stream(limit: int = 4) -> RequestStream:
    return RequestStream(["0"], 1, limit, lambda wake: wake())


def queued(outputs: RequestStream) -> list[Any]:
    return list(outputs._items)


def test_task_1_outputs_below_the_limit_stay_separate():
    outputs = request_stream(limit=3)
    for text in "abc":
        outputs.put(output(text))
    assert_equal([item.text for item in queued(outputs)], ["a", "b", "c"], "three separate outputs")


@pytest.mark.parametrize("num_completions", [1, 3])
def test_task_1_length_is_bounded_and_nothing_is_lost(num_completions):
    outputs, limit = request_stream(limit=8), 8
    for step in range(1000):
        for index in range(num_completions):
            outputs.put(output(chr(ord("a") + (step + index) % 26), index))
    assert_equal(len(queued(outputs)), limit, f"{limit} queued items")
    for index in range(num_completions):
        own = [item for item in queued(outputs) if item.index == index]
        text = "".join(item.text for item in own)
        tokens = sum((item.token_ids for item in own), ())
        expected = "".join(chr(ord("a") + (step + index) % 26) for step in range(1000))
        assert_equal(text, expected, f"the whole text of completion {index} in order")
        assert tokens == tuple(map(ord, expected)), f"expected 1000 tokens, got {len(tokens)}"


def test_task_1_completions_are_not_mixed():
    """Completions that share a queue differ in request id or index."""
    outputs = request_stream(limit=3)
    x = [("x", 0, "0"), ("x", 1, "0"), ("x", 0, "1")]
    for item in (*x, ("a", 0, "0"), ("b", 0, "1"), ("c", 1, "0")):
        outputs.put(output(*item))
    actual = [(item.request_id, item.index, item.text) for item in queued(outputs)]
    expected = [("0", 0, "xa"), ("0", 1, "xc"), ("1", 0, "xb")]
    assert_equal(actual, expected)


def test_task_1_full_queue():
    """The queue may exceed its limit by one output per completion."""
    outputs = request_stream(limit=1)
    outputs.put(output("a", 0))
    outputs.put(output("b", 1))
    outputs.put(output("c", 1))
    actual = [(item.index, item.text) for item in queued(outputs)]
    assert actual == [(0, "a"), (1, "bc")], f"expected [(0, 'a'), (1, 'bc')], got {actual}"
    outputs, error = request_stream(limit=1), ApiError(504, "Too slow.")
    outputs.put(output("a"))
    outputs.put(error)
    outputs.put(output("b"))
    actual = queued(outputs)
    assert actual[-1] is error, f"expected the error in the full queue, got {actual}"
    assert actual[0].text == "ab", f"expected 'ab' before the error, got {actual[0].text!r}"


def test_task_1_merged_fields():
    old = output("ab", is_first=True, logprobs=({1: -0.1}, {2: -0.2}), prompt_logprobs=(None,))
    new = output("c", logprobs=({3: -0.3},), num_cached_tokens=5)
    new = new._replace(finish_reason="stop", stop_reason="c")
    merged = merge_outputs(old, new)
    expected = {
        "text": "abc",
        "token_ids": (97, 98, 99),
        "logprobs": ({1: -0.1}, {2: -0.2}, {3: -0.3}),
        "prompt_logprobs": (None,),
        "is_first": True,
        "finish_reason": "stop",
        "stop_reason": "c",
        "num_cached_tokens": 5,
    }
    for name, value in expected.items():
        assert_equal(getattr(merged, name), value, name)
    assert (old.text, new.text) == ("ab", "c"), "expected both outputs to be unchanged"
    merged = merge_outputs(output("a"), output("b"))
    assert merged.logprobs is None, f"expected None without logprobs, got {merged.logprobs!r}"


async def test_task_2_get_returns_all_items_in_order():
    outputs = request_stream()
    for text in "ab":
        outputs.put(output(text))
    assert_equal([item.text for item in await outputs.get()], ["a", "b"], "all queued outputs")
    assert queued(outputs) == [], f"expected an empty queue, got {queued(outputs)}"
    outputs, received = request_stream(), []

    async def read() -> None:
        for _ in range(2):
            received.append([item.text for item in await outputs.get()])  # type: ignore[union-attr]

    reader = asyncio.create_task(read())
    for expected in ([], [["a"]], [["a"], ["b"]]):
        for _ in range(10):
            await asyncio.sleep(0)
        assert_equal(received, expected, "the reader to have received")
        if reader.done():
            break
        outputs.put(output("ab"[len(expected)]))
    await reader


async def test_task_2_slow_reader_does_not_delay_others():
    slow, quick = request_stream(limit=4), request_stream(limit=4)
    texts: list[str] = []
    for _ in range(100):
        slow.put(output("s"))
        quick.put(output("q"))
        texts += [item.text for item in await quick.get()]  # type: ignore[union-attr]
    assert texts == ["q"] * 100, f"expected 100 separate outputs, got {len(texts)}"
    waiting = "".join(item.text for item in await slow.get())  # type: ignore[union-attr]
    assert waiting == "s" * 100, f"expected 100 outputs for the slow reader, got {len(waiting)}"


class EndlessWaitError(AssertionError):
    """Raised if the loop waits on an empty queue without end."""


class ScriptedQueue(queue.SimpleQueue[Any]):
    """Command queue that counts waits and fails instead of waiting forever."""

    num_waits = 0

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """See `SimpleQueue.get`; timeouts expire immediately."""
        if not self.empty():
            return super().get_nowait()
        self.num_waits += block
        assert not block or timeout is not None, (
            "expected get(timeout=MEMORY_CHECK_INTERVAL), so that memory is checked while the "
            "engine is idle; got a wait without a timeout"
        )
        if self.num_waits == 10:
            raise EndlessWaitError("expected the loop to end, but it kept waiting (10 waits)")
        raise queue.Empty

    def get_nowait(self) -> Any:
        return self.get(block=False)


class Engine:
    """Fake engine whose requests take a number of steps; records calls.

    Args:
        arrivals: commands that arrive during a step, keyed by step number (from 1).
    """

    def __init__(self, commands: ScriptedQueue, arrivals: dict[int, list[Any]]):
        self.scheduler = SimpleNamespace(listener=None)
        self.history: list[str] = []
        self.running: dict[str, int] = {}
        self.memory_is_short = False
        self.num_pages_left = 3  # pages of a prefix that `precompute` still has to compute
        self._commands, self._arrivals, self._steps = commands, arrivals, 0

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def add_tokenized_request(
        self, token_ids: Sequence[int], params: Any, request_id: str, **_: Any
    ) -> None:
        if not token_ids:
            raise UserError("the prompt is empty.")
        self.history.append(f"add {request_id}")
        self.running[request_id] = len(token_ids)

    def abort(self, request_id: str) -> None:
        self.history.append(f"abort {request_id}")
        self.running.pop(request_id, None)

    def step(self) -> list[StreamOutput]:
        assert self.running, "expected no engine step without running requests, got one"
        self._steps += 1
        self.history.append("step of " + ", ".join(self.running))
        for command in self._arrivals.pop(self._steps, ()):
            self._commands.put(command)
        outputs = [output("x", request_id=request_id) for request_id in self.running]
        self.running = {name: left - 1 for name, left in self.running.items() if left > 1}
        return outputs

    def precompute(self, token_ids: Sequence[int], lora: str | None) -> bool:
        self.history.append("precompute a page")
        self.num_pages_left -= 1
        return self.num_pages_left > 0

    def check_memory(self) -> bool:
        self.history.append("check memory")
        return self.memory_is_short


def add(name: str, steps: int = 1) -> AddRequest:
    return AddRequest(name, [7] * steps, PARAMS)


class LoopHarness:
    """Runs an engine thread's loop in the test; `arrivals` is as in `Engine`."""

    def __init__(self, *commands: Any, arrivals: dict[int, list[Any]] | None = None):
        self.commands = ScriptedQueue()
        for command in commands:
            self.commands.put(command)
        self.engine = Engine(self.commands, arrivals or {})
        self.reports: list[Any] = []
        self.thread = EngineThread(lambda: None, self.commands, self._on_report)  # type: ignore[arg-type,return-value]

    def _on_report(self, report: Any) -> None:
        self.reports.append(report)
        if len(self.reports) > 50:
            pytest.fail("expected the loop to end, got 50 rounds")

    def run(self) -> bool:
        return self.thread._run_loop(self.engine)  # type: ignore[arg-type]

    @property
    def outputs(self) -> list[list[str]]:
        """Outputs in each report after the initial one: their texts or errors, and requests."""
        return [
            [f"{one.error or one.text} {one.request_id}" for one in report.outputs]
            for report in self.reports[1:]
        ]


@pytest.fixture(autouse=True)
def no_statistics(monkeypatch):
    """Stubs engine statistics, which the fake engine lacks."""
    monkeypatch.setattr(engine_thread, "_engine_stats", lambda llm: EngineStats())


def history_of(*commands: Any, **options: Any) -> list[str]:
    harness = LoopHarness(*commands, **options)
    harness.run()
    return harness.engine.history


def test_task_3_commands_are_processed_between_steps():
    """An abort that arrives during a step takes effect before the following step."""
    arrivals = {1: [AbortRequest("a")], 2: [Shutdown()]}
    expected = ["add a", "add b", "step of a, b", "abort a", "step of b"]
    assert_equal(history_of(add("a", 9), add("b", 2), arrivals=arrivals), expected)
    # All queued commands are handled before a step.
    names = [f"r{number}" for number in range(8)]
    expected = [*(f"add {name}" for name in names), f"step of {', '.join(names)}"]
    assert_equal(history_of(*map(add, names), arrivals={1: [Shutdown()]}), expected)


def test_task_3_running_requests_do_not_wait_for_commands():
    harness = LoopHarness(add("a", 5), arrivals={5: [Shutdown()]})
    harness.run()
    steps = harness.engine.history.count("step of a")
    assert steps == 5, f"expected 5 steps without further commands, got {steps}"
    assert_equal(harness.commands.num_waits, 0, "no wait while a request runs")


def test_task_3_idle_engine_waits_and_checks_memory():
    harness = LoopHarness()

    def check_memory() -> bool:
        harness.engine.history.append("check memory")
        if harness.engine.history.count("check memory") == 3:
            harness.commands.put(Shutdown())
        return False

    harness.engine.check_memory = check_memory  # type: ignore[method-assign]
    harness.run()
    expected = ["check memory"] * 3
    assert_equal(harness.engine.history, expected, "a check after each timeout and nothing else")
    assert_equal(len(harness.reports) - 1, 0, "reports while idle")


def test_task_3_memory_is_trimmed_before_each_wait():
    """Trimming is slow, so it must not happen while there is work."""
    harness = LoopHarness(add("a", 2))
    history, arrivals = harness.engine.history, [add("b", 2), Shutdown()]

    def check_memory() -> bool:
        history.append("check memory")
        harness.commands.put(arrivals.pop(0))
        return False

    harness.engine.check_memory = check_memory  # type: ignore[method-assign]
    harness.thread._trim_memory = lambda llm: history.append("trim")  # type: ignore[method-assign]
    harness.run()
    expected = [
        *("trim", "add a", "step of a", "step of a"),
        *("trim", "check memory", "add b", "step of b", "step of b"),
        *("trim", "check memory"),
    ]
    assert_equal(history, expected, "one `_trim_memory` in each round that begins without work")


def test_task_3_memory_pressure_ends_the_wait():
    """After pages are evicted, a report updates the client's count of free pages."""
    harness = LoopHarness()
    harness.engine.memory_is_short = True
    on_report = harness.thread._report

    def report_and_shut_down(report: Any) -> None:
        on_report(report)
        if len(harness.reports) == 2:
            harness.commands.put(Shutdown())

    harness.thread._report = report_and_shut_down
    try:
        harness.run()
    except EndlessWaitError:
        raise AssertionError(
            "`check_memory` returned True: expected the wait to end and a report to be sent, but "
            "the loop kept waiting (10 waits)"
        ) from None
    assert_equal(len(harness.reports) - 1, 1, "a report after the check")


def test_task_3_prefixes_are_precomputed_while_idle():
    """The loop precomputes without waiting; commands take precedence."""
    history = history_of(Precompute((1, 2)), add("a"), arrivals={1: [Shutdown()]})
    assert_equal(history, ["add a", "step of a"], "requests before precomputation")
    harness = LoopHarness(Precompute((1, 2)))
    with pytest.raises(EndlessWaitError):
        harness.run()
    expected = ["precompute a page"] * 3
    expected.append("check memory")
    assert_equal(harness.engine.history[:4], expected, "three consecutive pages, then a wait")


def test_task_3_every_step_is_reported_in_order():
    harness = LoopHarness(
        add("bad", 0), add("a", 2), arrivals={1: [add("worse", 0), add("b")], 2: [Shutdown()]}
    )
    harness.run()
    expected = [["the prompt is empty. bad", "x a"], ["the prompt is empty. worse", "x a", "x b"]]
    assert harness.outputs == expected, f"expected the outputs {expected}, got {harness.outputs}"


@pytest.mark.parametrize(("command", "expected"), [(UnloadModel(), True), (Shutdown(), False)])
def test_task_3_unload_is_not_a_shutdown(command, expected):
    harness = LoopHarness(add("a"), command, add("b"))
    actual = harness.run()
    assert actual is expected, f"expected {expected} after {command}, got {actual}"
    assert_equal(harness.engine.history, ["add a"], f"no step and no command after {command}")


class Loop:
    """Event loop that records callbacks, or raises if `closed`, as at exit."""

    def __init__(self, closed: bool = False):
        self.calls: list[tuple[str, Any]] = []
        self._closed = closed

    def call_soon_threadsafe(self, callback: Any) -> None:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        self.calls.append(("call_soon_threadsafe", callback))

    def call_soon(self, callback: Any) -> None:
        self.calls.append(("call_soon", callback))

    def call_later(self, seconds: float, callback: Any) -> None:
        self.calls.append(("call_later", callback))


def coalescer(loop: Loop, next_flush: float = 0.0) -> tuple[Coalescer, list[Any]]:
    """(coalescer with the given next flush time, list of delivered messages)."""
    delivered: list[Any] = []
    made = Coalescer(delivered.append, lambda: 1000.0)
    made._loop, made._next_flush = loop, next_flush  # type: ignore[assignment]
    return made, delivered


def report(*outputs: Any) -> StepReport:
    return StepReport(outputs, EngineStats())


def test_task_4_flushes():
    loop = Loop()
    made, delivered = coalescer(loop)
    message = report(output("a"))
    made.post(message)
    names = [name for name, _ in loop.calls]
    assert_equal(names, ["call_soon_threadsafe"], "the loop to be woken by call_soon_threadsafe")
    assert delivered == [], "expected delivery by the event loop, not the engine thread"
    loop.calls[0][1]()
    assert_equal(delivered, [message], "the message to be delivered by the loop")
    loop = Loop()
    made, delivered = coalescer(loop, next_flush=float("inf"))
    for text in "abc":
        made.post(report(output(text)))
    assert loop.calls == [], f"expected no call before the flush is due, got {len(loop.calls)}"
    made._flush()
    texts = [message.outputs[0].text for message in delivered]
    assert_equal(texts, ["a", "b", "c"], "the flush to deliver all messages in order")


@pytest.mark.parametrize(
    "urgent",
    [
        report(output("a", is_first=True)),
        report(output("")._replace(finish_reason="stop")),
        report(output("a"), output("b", is_first=True)),
    ],
    ids=["first token", "end", "first token among others"],
)
def test_task_4_urgent_messages_do_not_wait(urgent):
    loop = Loop()
    made, delivered = coalescer(loop, next_flush=float("inf"))
    made.post(report(output("x")))
    made.post(urgent)
    assert_equal(len(loop.calls), 1, "the number of calls, only for the urgent message")
    loop.calls[0][1]()
    assert len(delivered) == 2, f"expected both messages to be delivered, got {len(delivered)}"
    assert delivered[1] is urgent, "expected messages in posting order, got the urgent one first"


def test_task_4_closed_loop_does_not_end_the_engine():
    made, _ = coalescer(Loop(closed=True))
    try:
        made.post(report(output("a")))  # the process is exiting, so the message can be dropped
    except RuntimeError as error:
        if "closed" not in str(error):
            raise
        pytest.fail("expected a closed loop to be ignored, got its RuntimeError")


async def test_task_4_thread_and_event_loop():
    """A real event loop receives all messages of a real thread, in order."""
    arrived: list[Any] = []
    done = asyncio.Event()
    loop_thread, threads = threading.get_ident(), set()

    def handle(message: Any) -> None:
        threads.add(threading.get_ident())
        arrived.append(message.outputs[0].text)
        if len(arrived) == 500:
            done.set()

    made = Coalescer(handle, lambda: 0.0001)
    made.start()
    expected = [str(number) for number in range(500)]

    def engine() -> None:
        for text in expected:
            made.post(report(output(text)))

    await asyncio.to_thread(engine)
    await done.wait()
    assert arrived == expected, f"expected 500 messages in order, got {len(arrived)}"
    assert threads == {loop_thread}, "expected delivery only on the event loop's thread"
