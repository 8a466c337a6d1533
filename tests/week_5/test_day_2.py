"""Week 5, day 2, optional: bounded output queue, engine thread, waking the event loop."""

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server's libraries are not installed")

from tiny_llm.engine.inputs.sampling_params import SamplingParams
from tiny_llm.engine.scheduling.outputs import StreamOutput
from tiny_llm.server.engine_client import engine_thread
from tiny_llm.server.engine_client.coalescer import Coalescer
from tiny_llm.server.engine_client.engine_thread import EngineThread
from tiny_llm.server.engine_client.messages import (
    AbortRequest,
    AddRequest,
    EngineStats,
    Precompute,
    RequestAccepted,
    Shutdown,
    StepReport,
    UnloadModel,
)
from tiny_llm.server.engine_client.output_queue import OutputQueue, merge_outputs
from tiny_llm.server.http.errors import ApiError

PARAMS = SamplingParams(max_tokens=9)


def output(text: str, index: int = 0, request_id: str = "0", **fields: Any) -> StreamOutput:
    """One output, with a token for each character."""
    tokens = tuple(map(ord, text))
    return StreamOutput(request_id, index, text, tokens, None, None, **fields)  # type: ignore[arg-type]


def output_queue(
    limit: int = 4, stall_timeout: float = 30, clock: Callable[[], float] = lambda: 1.0
) -> OutputQueue:
    """A queue that wakes its reader at once."""
    return OutputQueue(limit, stall_timeout, lambda wake: wake(), clock)


def queued(outputs: OutputQueue) -> list[Any]:
    """The items in the queue, which stay there."""
    return list(outputs._items)


def run(work: Coroutine[Any, Any, Any]) -> None:
    """Runs a test's coroutine; fails instead of waiting forever."""

    async def limited() -> None:
        async with asyncio.timeout(10):
            await work

    try:
        asyncio.run(limited())
    except TimeoutError:
        pytest.fail("expected the reader to be woken, got no end")


# --- task 1: a queue that merges -----------------------------------------------------------------


def test_task_1_below_the_limit_outputs_stay_separate():
    outputs = output_queue(limit=3)
    for text in "abc":
        outputs.put(output(text))
    texts = [item.text for item in queued(outputs)]
    assert texts == ["a", "b", "c"], f"expected three outputs, got {texts}"


@pytest.mark.parametrize("num_completions", [1, 3])
def test_task_1_length_is_bounded_and_nothing_is_lost(num_completions):
    outputs, limit = output_queue(limit=8), 8
    for step in range(1000):
        for index in range(num_completions):
            outputs.put(output(chr(ord("a") + (step + index) % 26), index))
    assert len(queued(outputs)) == limit, f"expected {limit} items, got {len(queued(outputs))}"
    for index in range(num_completions):
        own = [item for item in queued(outputs) if item.index == index]
        text = "".join(item.text for item in own)
        tokens = sum((item.token_ids for item in own), ())
        expected = "".join(chr(ord("a") + (step + index) % 26) for step in range(1000))
        assert text == expected, (
            f"expected the whole text of completion {index} in order, got {len(text)} characters, "
            f"which begin with {text[:30]!r} and end with {text[-30:]!r}"
        )
        assert tokens == tuple(map(ord, expected)), f"expected 1000 tokens, got {len(tokens)}"


def test_task_1_completions_are_not_mixed():
    """Requests and completions share a queue; ids of requests tell them apart, then indices."""
    outputs = output_queue(limit=3)
    for request_id, index in (("0", 0), ("0", 1), ("1", 0)):
        outputs.put(output("x", index, request_id))
    for text, index, request_id in (("a", 0, "0"), ("b", 0, "1"), ("c", 1, "0")):
        outputs.put(output(text, index, request_id))
    actual = [(item.request_id, item.index, item.text) for item in queued(outputs)]
    expected = [("0", 0, "xa"), ("0", 1, "xc"), ("1", 0, "xb")]
    assert actual == expected, f"expected {expected}, got {actual}"


def test_task_1_a_completion_without_queued_output_is_added():
    """The limit is exceeded by at most one output of each completion."""
    outputs = output_queue(limit=1)
    outputs.put(output("a", 0))
    outputs.put(output("b", 1))
    outputs.put(output("c", 1))
    actual = [(item.index, item.text) for item in queued(outputs)]
    assert actual == [(0, "a"), (1, "bc")], f"expected [(0, 'a'), (1, 'bc')], got {actual}"


def test_task_1_an_error_is_never_merged():
    outputs, error = output_queue(limit=1), ApiError(504, "Too slow.")
    outputs.put(output("a"))
    outputs.put(error)
    outputs.put(output("b"))
    actual = queued(outputs)
    assert actual[-1] is error, f"expected the error in the full queue, got {actual}"
    assert actual[0].text == "ab", f"expected 'ab' before it, got {actual[0].text!r}"


def test_task_1_merged_fields():
    old = output("ab", is_first=True, logprobs=[{1: -0.1}, {2: -0.2}], prompt_logprobs=[None])
    new = output("c", logprobs=[{3: -0.3}], num_cached_tokens=5)
    new.finish_reason, new.stop_reason = "stop", "c"
    merged = merge_outputs(old, new)
    expected = {
        "text": "abc",
        "token_ids": (97, 98, 99),
        "logprobs": [{1: -0.1}, {2: -0.2}, {3: -0.3}],
        "prompt_logprobs": [None],
        "is_first": True,
        "finish_reason": "stop",
        "stop_reason": "c",
        "num_cached_tokens": 5,
    }
    for name, value in expected.items():
        actual = getattr(merged, name)
        assert actual == value, f"{name}: expected {value!r}, got {actual!r}"
    assert (old.text, new.text) == ("ab", "c"), "expected both outputs to stay as they were"


def test_task_1_merged_without_logprobs():
    merged = merge_outputs(output("a"), output("b"))
    assert merged.logprobs is None, f"expected None without logprobs, got {merged.logprobs!r}"


# --- task 2: the reader, and a reader that stalls ------------------------------------------------


def test_task_2_get_returns_all_items_in_order():
    async def main() -> None:
        outputs = output_queue()
        for text in "ab":
            outputs.put(output(text))
        texts = [item.text for item in await outputs.get()]  # type: ignore[union-attr]
        assert texts == ["a", "b"], f"expected all queued outputs, got {texts}"
        assert queued(outputs) == [], f"expected an empty queue, got {queued(outputs)}"

    run(main())


def test_task_2_get_waits_for_an_output():
    async def main() -> None:
        outputs, received = output_queue(), []

        async def read() -> None:
            for _ in range(2):
                received.append([item.text for item in await outputs.get()])  # type: ignore[union-attr]

        reader = asyncio.create_task(read())
        for expected in ([], [["a"]], [["a"], ["b"]]):
            for _ in range(10):
                await asyncio.sleep(0)
            assert received == expected, f"expected the reader to have {expected}, got {received}"
            if reader.done():
                break
            outputs.put(output("ab"[len(expected)]))
        await reader

    run(main())


def test_task_2_a_full_queue_stalls_after_a_while():
    now = 100.0
    outputs = output_queue(limit=1, stall_timeout=10, clock=lambda: now)
    states = [outputs.is_stalled]
    outputs.put(output("a"))
    now = 200.0
    states.append(outputs.is_stalled)
    for seconds in (0, 5, 10, 11):
        now = 200.0 + seconds
        outputs.put(output("b"))
        states.append(outputs.is_stalled)
    expected = [False, False, False, False, False, True]
    assert states == expected, (
        "expected a queue to be stalled 10 s after the first output that had no room, not earlier: "
        f"{expected}, got {states}"
    )


def test_task_2_reading_ends_a_stall():
    async def main() -> None:
        now = 100.0
        outputs = output_queue(limit=1, stall_timeout=10, clock=lambda: now)
        for seconds in (0, 1, 20):
            now = 100.0 + seconds
            outputs.put(output("a"))
        assert outputs.is_stalled, "expected a stall after 19 s, got none"
        await outputs.get()
        assert not outputs.is_stalled, "expected a read to end the stall, got is_stalled == True"
        outputs.put(output("b"))
        assert not outputs.is_stalled, "expected an empty queue to begin anew, got a stall"

    run(main())


def test_task_2_a_slow_reader_harms_nobody():
    """Two clients: one reads nothing. The other gets everything, one by one."""

    async def main() -> None:
        slow, quick = output_queue(limit=4), output_queue(limit=4)
        texts: list[str] = []
        for _ in range(100):
            slow.put(output("s"))
            quick.put(output("q"))
            texts += [item.text for item in await quick.get()]  # type: ignore[union-attr]
        assert texts == ["q"] * 100, f"expected 100 separate outputs, got {len(texts)}"
        waiting = "".join(item.text for item in await slow.get())  # type: ignore[union-attr]
        assert waiting == "s" * 100, f"expected all 100 to wait for the other, got {len(waiting)}"

    run(main())


# --- task 3: the engine thread's loop ------------------------------------------------------------


class ScriptedQueue(queue.SimpleQueue[Any]):
    """A command queue that fails where a thread would wait forever.

    Attributes:
        num_waits: how often `get` found nothing.
    """

    num_waits = 0

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """See `SimpleQueue.get`; a timeout expires at once."""
        try:
            return super().get_nowait()
        except queue.Empty:
            self.num_waits += block
            assert not block or timeout is not None, (
                "expected get(timeout=MEMORY_CHECK_INTERVAL), so that memory is checked while the "
                "engine is idle; got a wait without a timeout"
            )
            assert self.num_waits < 10, "expected the loop to end, got the tenth wait in vain"
            raise

    def get_nowait(self) -> Any:
        """See `SimpleQueue.get_nowait`."""
        return self.get(block=False)


class Engine:
    """An engine whose requests take a number of steps; it writes down what happens.

    Args:
        commands: the thread's queue.
        arrivals: commands that arrive during a step, by its number from 1.
    """

    def __init__(self, commands: ScriptedQueue, arrivals: dict[int, list[Any]]):
        self.scheduler = SimpleNamespace(listener=None)
        self.history: list[str] = []
        self.running: dict[str, int] = {}
        self.memory_is_short = False
        self.num_pages_left = 3  # of a likely prefix
        self._commands, self._arrivals, self._steps = commands, arrivals, 0

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def add_request(self, token_ids: Sequence[int], params: Any, request_id: str, **_: Any) -> None:
        self.history.append(f"add {request_id}")
        self.running[request_id] = len(token_ids)

    def abort(self, request_id: str) -> None:
        self.history.append(f"abort {request_id}")
        self.running.pop(request_id, None)

    def step(self) -> list[StreamOutput]:
        assert self.running, "expected a step only with requests, got one without"
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
    """A request that takes some steps."""
    return AddRequest(name, [7] * steps, PARAMS)


class Rig:
    """An engine thread's loop, run in the test's own thread.

    Args:
        commands: queued before the loop begins.
        arrivals: see `Engine`.
    """

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
        """Runs the loop until it returns."""
        return self.thread._run_loop(self.engine)  # type: ignore[arg-type]

    @property
    def updates(self) -> list[list[str]]:
        """Updates of each report after the first, which says that the engine is ready."""
        return [
            [f"{type(one).__name__} {one.request_id}" for one in report.updates]
            for report in self.reports[1:]
        ]


@pytest.fixture(autouse=True)
def no_statistics(monkeypatch):
    """The scripted engine has none."""
    monkeypatch.setattr(engine_thread, "_engine_stats", lambda llm: EngineStats())


def test_task_3_commands_are_processed_between_steps():
    """An abort that arrives during a step takes effect before the next one."""
    rig = Rig(add("a", 9), add("b", 2), arrivals={1: [AbortRequest("a")], 2: [Shutdown()]})
    rig.run()
    expected = ["add a", "add b", "step of a, b", "abort a", "step of b"]
    assert rig.engine.history == expected, f"expected {expected}, got {rig.engine.history}"


def test_task_3_all_queued_commands_come_before_a_step():
    """So that requests that arrive together are computed together."""
    names = [f"r{number}" for number in range(8)]
    rig = Rig(*map(add, names), arrivals={1: [Shutdown()]})
    rig.run()
    expected = [*(f"add {name}" for name in names), f"step of {', '.join(names)}"]
    assert rig.engine.history == expected, f"expected {expected}, got {rig.engine.history}"


def test_task_3_a_running_request_never_waits_for_a_command():
    rig = Rig(add("a", 5), arrivals={5: [Shutdown()]})
    rig.run()
    steps = rig.engine.history.count("step of a")
    assert steps == 5, f"expected 5 steps without a further command, got {steps}"
    assert rig.commands.num_waits == 0, (
        f"expected no wait while a request runs, got {rig.commands.num_waits}"
    )


def test_task_3_an_idle_engine_waits_and_checks_memory():
    rig = Rig()

    def check_memory() -> bool:
        rig.engine.history.append("check memory")
        if rig.engine.history.count("check memory") == 3:
            rig.commands.put(Shutdown())
        return False

    rig.engine.check_memory = check_memory  # type: ignore[method-assign]
    rig.run()
    expected = ["check memory"] * 3
    assert rig.engine.history == expected, (
        f"expected a check after each timeout and nothing else, got {rig.engine.history}"
    )
    assert len(rig.reports) == 1, (
        f"expected no report while nothing happens, got {len(rig.reports) - 1}"
    )


def test_task_3_short_memory_ends_the_wait():
    """Pages have been evicted: a report tells the client how many are free."""
    rig = Rig()
    rig.engine.memory_is_short = True
    on_report = rig.thread._report

    def report_and_shut_down(report: Any) -> None:
        on_report(report)
        if len(rig.reports) == 2:
            rig.commands.put(Shutdown())

    rig.thread._report = report_and_shut_down
    rig.run()
    assert len(rig.reports) == 2, f"expected a report of the check, got {len(rig.reports) - 1}"


def test_task_3_likely_prefixes_are_computed_while_idle():
    """Work without a request: the loop does not wait, but a command interrupts it."""
    rig = Rig(Precompute((1, 2)), add("a"), arrivals={1: [Shutdown()]})
    rig.run()
    assert rig.engine.history == ["add a", "step of a"], (
        f"expected requests first, got {rig.engine.history}"
    )
    rig = Rig(Precompute((1, 2)))
    with pytest.raises(AssertionError, match="tenth wait"):
        rig.run()
    expected = ["precompute a page"] * 3
    assert rig.engine.history[:4] == [*expected, "check memory"], (
        f"expected three pages one after the other, then a wait, got {rig.engine.history[:4]}"
    )


def test_task_3_every_step_is_reported_in_order():
    rig = Rig(add("a", 2), arrivals={1: [add("b")], 2: [Shutdown()]})
    rig.run()
    expected = [
        ["RequestAccepted a", "StreamOutput a"],
        ["RequestAccepted b", "StreamOutput a", "StreamOutput b"],
    ]
    assert rig.updates == expected, f"expected the updates {expected}, got {rig.updates}"


@pytest.mark.parametrize(("command", "expected"), [(UnloadModel(), True), (Shutdown(), False)])
def test_task_3_unloading_is_no_shutdown(command, expected):
    rig = Rig(add("a"), command, add("b"))
    actual = rig.run()
    assert actual is expected, f"expected {expected} after {command}, got {actual}"
    assert rig.engine.history == ["add a"], (
        f"expected no step and no command after {command}, got {rig.engine.history}"
    )


# --- task 4: waking the event loop ---------------------------------------------------------------


class Loop:
    """An event loop that writes down what it is asked to call.

    Args:
        closed: whether it refuses, as after the process has begun to exit.
    """

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
    """A coalescer with a flush in the past or the future; and the messages it has delivered."""
    delivered: list[Any] = []
    made = Coalescer(delivered.append, lambda: 1000.0)
    made._loop, made._next_flush = loop, next_flush  # type: ignore[assignment]
    return made, delivered


def report(*updates: Any) -> StepReport:
    """Report of a step."""
    return StepReport(updates, EngineStats())


def test_task_4_a_message_after_a_pause_wakes_the_loop():
    loop = Loop()
    made, delivered = coalescer(loop)
    message = report(output("a"))
    made.post(message)
    names = [name for name, _ in loop.calls]
    assert names == ["call_soon_threadsafe"], (
        f"expected the loop to be woken by its one thread-safe method, got {names}"
    )
    assert delivered == [], "expected the loop to deliver the message, got the engine's thread"
    loop.calls[0][1]()
    assert delivered == [message], f"expected the message in the loop's thread, got {delivered}"


def test_task_4_tokens_before_a_flush_wait():
    loop = Loop()
    made, delivered = coalescer(loop, next_flush=float("inf"))
    for text in "abc":
        made.post(report(output(text)))
    assert loop.calls == [], f"expected no call before the flush is due, got {len(loop.calls)}"
    made._flush()
    texts = [message.updates[0].text for message in delivered]
    assert texts == ["a", "b", "c"], f"expected the flush to deliver all in order, got {texts}"


@pytest.mark.parametrize(
    "urgent",
    [
        report(output("a", is_first=True)),
        report(RequestAccepted("0")),
        report(output("a"), output("b", is_first=True)),
    ],
    ids=["first token", "accepted", "one of two"],
)
def test_task_4_urgent_messages_do_not_wait(urgent):
    loop = Loop()
    made, delivered = coalescer(loop, next_flush=float("inf"))
    made.post(report(output("x")))
    made.post(urgent)
    assert len(loop.calls) == 1, (
        f"expected the urgent message alone to wake the loop, got {len(loop.calls)} calls"
    )
    loop.calls[0][1]()
    assert len(delivered) == 2, f"expected the earlier one with it, got {len(delivered)} messages"
    assert delivered[1] is urgent, "expected the order of posting, got the urgent message first"


def test_task_4_a_closed_loop_does_not_end_the_engine():
    made, _ = coalescer(Loop(closed=True))
    try:
        made.post(report(output("a")))  # the process is exiting: nobody waits for it
    except RuntimeError as error:
        if "closed" not in str(error):
            raise
        pytest.fail("expected a closed loop to be ignored, got its RuntimeError")


def test_task_4_a_thread_and_a_loop():
    """Messages of a real thread arrive in a real loop, all of them and in order."""

    async def main() -> None:
        arrived: list[Any] = []
        done = asyncio.Event()
        loop_thread, threads = threading.get_ident(), set()

        def handle(message: Any) -> None:
            threads.add(threading.get_ident())
            arrived.append(message.updates[0].text)
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
        assert threads == {loop_thread}, "expected one thread to deliver, got the engine's as well"

    run(main())
