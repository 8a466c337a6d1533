"""Week 5, day 1, optional: server-sent events, streamed responses and cancellation."""

import asyncio
import json
import queue
import re
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server's libraries are not installed")

from tiny_llm.engine.inputs.sampling_params import SamplingParams
from tiny_llm.engine.scheduling.outputs import StreamOutput
from tiny_llm.server.engine_client.client import EngineClient
from tiny_llm.server.engine_client.lifecycle import Lifecycle, Phase
from tiny_llm.server.engine_client.messages import (
    AbortRequest,
    EngineReady,
    EngineStats,
    StepReport,
)
from tiny_llm.server.engine_client.metrics import Metrics
from tiny_llm.server.http.errors import INTERNAL_ERROR, ApiError
from tiny_llm.server.protocol import streaming
from tiny_llm.server.protocol.disconnect import CancelOnDisconnect, wait_for_disconnect
from tiny_llm.server.protocol.streaming import (
    TEXT_PLACEHOLDER,
    EventSourceResponse,
    EventTemplate,
    sse_event,
)
from tiny_llm.server.settings import Settings

LONG = 1000.0  # seconds; longer than any test
TEXTS = ["Paris", "", 'She said "no" \\o/', "two\nlines", "\r\n\r\n", "\n\ndata: forged", "né 🦆 "]


def run(work: Coroutine[Any, Any, Any]) -> None:
    """Runs a test's coroutine; fails instead of waiting forever."""

    async def limited() -> None:
        async with asyncio.timeout(10):
            await work

    try:
        asyncio.run(limited())
    except TimeoutError:
        pytest.fail("expected an end, got none: something waits that nobody wakes")


def parse_events(stream: bytes) -> list[tuple[str, str]]:
    """(type, data) of each event, as the HTML standard parses them."""
    events: list[tuple[str, str]] = []
    name = ""
    data: list[str] = []
    for line in re.split("\r\n|\n|\r", stream.decode()):
        field, _, value = line.partition(":")
        if not line:
            if data:
                events.append((name or "message", "\n".join(data)))
            name, data = "", []
        elif field == "event":
            name = value.removeprefix(" ")
        elif field == "data":
            data.append(value.removeprefix(" "))
    return events


class ScriptedHandle:
    """A request whose outputs are known in advance: batches of texts, or an error.

    Attributes:
        asked: number of batches that have been asked for.
        num_closed: number of calls of `close`.
        on_slow_reader: see `RequestHandle`.
    """

    def __init__(self, *script: list[str] | BaseException, waits: bool = False):
        self.asked = self.num_closed = 0
        self.on_slow_reader: Any = None
        self._script, self._waits = script, waits

    async def stream_outputs(self) -> AsyncIterator[list[StreamOutput]]:
        """Yields the batches; then waits forever with `waits`."""
        for item in self._script:
            self.asked += 1
            if isinstance(item, BaseException):
                raise item
            yield [StreamOutput("0", 0, text, (7,), None, None) for text in item]  # type: ignore[arg-type]
        if self._waits:
            await asyncio.Event().wait()

    def close(self) -> None:
        """Counts the calls."""
        self.num_closed += 1


class PlainSerializer:
    """Serializes outputs as their texts, between `<` and `>`."""

    def start_events(self) -> bytes:
        return b"<"

    def delta_events(self, output: StreamOutput) -> bytes:
        return output.text.encode()

    def end_events(self) -> bytes:
        return b">"

    def error_events(self, error: ApiError) -> bytes:
        return f"({error.status}: {error.message})".encode()


class Wire:
    """ASGI's `send`: the messages that the server has received.

    Args:
        pause: what `send` waits for, like a client's full socket; None for nothing.
    """

    def __init__(self, pause: asyncio.Event | None = None):
        self.messages: list[Any] = []
        self._pause = pause

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)
        if self._pause is not None:
            await self._pause.wait()

    @property
    def bodies(self) -> list[bytes]:
        """Body of each write."""
        return [one["body"] for one in self.messages if one["type"] == "http.response.body"]

    @property
    def num_heads(self) -> int:
        """How often the headers were sent."""
        return sum(one["type"] == "http.response.start" for one in self.messages)


def response_of(handle: ScriptedHandle) -> EventSourceResponse:
    """A response without keep-alives."""
    return EventSourceResponse(PlainSerializer(), handle, keep_alive=LONG)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def patient_headers(monkeypatch):
    """Headers wait for the first output, however slow the machine is."""
    monkeypatch.setattr(streaming, "HEADER_DELAY", LONG)


# --- task 1: server-sent events ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "name", "expected"),
    [
        ({"text": "Paris"}, None, b'data: {"text":"Paris"}\n\n'),
        ([1, None], "ping", b"event: ping\ndata: [1,null]\n\n"),
    ],
    ids=["default type", "named"],
)
def test_task_1_an_example(data, name, expected):
    event = sse_event(data, name)
    assert event == expected, f"expected {expected!r}, got {event!r}"


@pytest.mark.parametrize("text", TEXTS, ids=repr)
def test_task_1_a_client_reads_the_same_texts(text):
    """Whatever the model writes, it does not end the event or begin another one."""
    stream = sse_event({"text": text}) + sse_event({"text": "next"}, "named")
    actual = [(name, json.loads(data)["text"]) for name, data in parse_events(stream)]
    expected = [("message", text), ("named", "next")]
    assert actual == expected, f"expected the client to read {expected}, got {actual}"


@pytest.mark.parametrize("text", TEXTS, ids=repr)
def test_task_1_template_equals_the_event(text):
    def event(content: str) -> bytes:
        return sse_event({"id": 'a"b', "choices": [{"text": content, "index": 0}]})

    template = EventTemplate(event(TEXT_PLACEHOLDER))
    assert template(text) == event(text), f"expected {event(text)!r}, got {template(text)!r}"
    again = template("again")
    assert again == event("again"), f"expected to fill it in twice, got {again!r}"


# --- task 2: a response in pieces ----------------------------------------------------------------


def test_task_2_each_batch_is_one_write():
    async def main() -> None:
        handle, wire = ScriptedHandle(["Par", "is"], ["", ""], ["."]), Wire()
        end = await response_of(handle)._send_outputs(wire)
        assert wire.bodies == [b"<Paris", b"."], (
            f"expected the start events with the first batch, and no write for a batch without "
            f"events; got {wire.bodies}"
        )
        assert end == b">", f"expected the end events to be returned, got {end!r}"
        more = [one.get("more_body") for one in wire.messages[1:]]
        assert more == [True, True], f"expected more_body while the stream goes on, got {more}"

    run(main())


def test_task_2_headers_come_first_and_once():
    async def main() -> None:
        wire = Wire()
        await response_of(ScriptedHandle(["a"], ["b"], ["c"]))._send_outputs(wire)
        kinds = [one["type"].rpartition(".")[2] for one in wire.messages]
        assert kinds == ["start", "body", "body", "body"], f"expected one start, got {kinds}"
        head = wire.messages[0]
        content_type = dict(head["headers"])[b"content-type"]
        assert head["status"] == 200
        assert content_type.startswith(b"text/event-stream"), (
            f"expected an event stream in the headers, got {content_type!r}"
        )

    run(main())


def test_task_2_headers_are_sent_once_beside_a_keep_alive():
    """While `send` waits for the client, a timer may send a keep-alive."""

    async def main() -> None:
        open_socket = asyncio.Event()
        response, wire = response_of(ScriptedHandle()), Wire(open_socket)
        both = asyncio.gather(response._send(wire, b"token"), response._send(wire, b": ping"))
        await asyncio.sleep(0)
        open_socket.set()
        await both
        assert wire.num_heads == 1, f"expected the headers once, got them {wire.num_heads} times"

    run(main())


def test_task_2_start_events_wait_for_the_first_output():
    """They may contain what is known only then, such as the number of cached tokens."""

    async def main() -> None:
        handle, made_at = ScriptedHandle(["a"], ["b"]), []

        class Serializer(PlainSerializer):
            def start_events(self) -> bytes:
                made_at.append(handle.asked)
                return b"<"

        response = EventSourceResponse(Serializer(), handle, LONG)  # type: ignore[arg-type]
        await response._send_outputs(Wire())
        assert made_at == [1], f"expected them after batch 1, and once, got after {made_at}"

    run(main())


def test_task_2_the_next_batch_waits_for_the_client():
    """Nobody asks for outputs that cannot be sent: that is where backpressure begins."""

    async def main() -> None:
        open_socket, handle = asyncio.Event(), ScriptedHandle(["a"], ["b"], ["c"])
        task = asyncio.create_task(response_of(handle)._send_outputs(Wire(open_socket)))
        for _ in range(20):
            await asyncio.sleep(0)
        if task.done():
            task.result()
        assert handle.asked == 1, (
            f"expected to wait for the first write before asking for batch 2, got {handle.asked}"
            " batches"
        )
        open_socket.set()
        await task

    run(main())


def test_task_2_the_last_piece_ends_the_body():
    async def main() -> None:
        wire = Wire()
        response = response_of(ScriptedHandle())
        await response._send(wire, b"a")
        await response._send(wire, b"b", is_last=True)
        more = [one["more_body"] for one in wire.messages[1:]]
        assert more == [True, False], f"expected the body to end with its last piece, got {more}"

    run(main())


# --- task 3: an error after the headers ----------------------------------------------------------


def send_all(*script: Any) -> tuple[Wire, list[bytes]]:
    """Runs a whole stream; returns what was sent."""
    wire = Wire()
    run(response_of(ScriptedHandle(*script))._send_all(wire))
    return wire, wire.bodies


def test_task_3_a_stream_ends_with_its_end_events():
    wire, bodies = send_all(["a"], ["b"])
    assert bodies == [b"<a", b"b", b">"], f"expected the end events at the end, got {bodies}"
    assert wire.messages[-1]["more_body"] is False, "expected the body to end, got more_body"


def test_task_3_an_api_error_becomes_the_last_event():
    wire, bodies = send_all(["a"], ApiError(504, "Too slow."))
    expected = [b"<a", b"(504: Too slow.)"]
    assert bodies == expected, f"expected {expected}, got {bodies}"
    assert wire.num_heads == 1, f"expected the headers once, got {wire.num_heads}"
    assert wire.messages[-1]["more_body"] is False, "expected the body to end, got more_body"


def test_task_3_an_error_before_the_first_output():
    _, bodies = send_all(ApiError(504, "Too slow."))
    assert bodies == [b"<(504: Too slow.)"], f"expected start events and an error, got {bodies}"


def test_task_3_a_bug_is_logged_but_not_sent(caplog):
    _, bodies = send_all(["a"], RuntimeError("the password is duck"))
    expected = [b"<a", f"(500: {INTERNAL_ERROR})".encode()]
    assert bodies == expected, f"expected a general sentence for the client, got {bodies}"
    assert "the password is duck" in caplog.text, "expected the traceback in the log, got none"


def test_task_3_a_cancellation_sends_nothing():
    """The client has gone, or the server shuts down: nobody is there to read an error."""

    async def main() -> None:
        wire = Wire()
        task = asyncio.create_task(response_of(ScriptedHandle(["a"], waits=True))._send_all(wire))
        while not wire.bodies:
            if task.done():
                task.result()
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), "expected the cancellation to be passed on, got a normal end"
        assert wire.bodies == [b"<a"], f"expected nothing more to be sent, got {wire.bodies}"

    run(main())


def test_task_3_no_keep_alive_follows_the_end():
    async def main() -> None:
        response, was_cancelled = response_of(ScriptedHandle(["a"])), []

        async def send(message: Any) -> None:
            if message.get("more_body") is False:
                assert response._timer is not None
                was_cancelled.append(response._timer.cancelled())

        await response._send_all(send)
        assert was_cancelled == [True], (
            f"expected the timer to be cancelled before the last write, got {was_cancelled}"
        )

    run(main())


# --- task 4: cancellation ------------------------------------------------------------------------


class Connection:
    """ASGI's `receive`: messages that the test puts in."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, kind: str) -> None:
        self._messages.put_nowait({"type": kind})

    def __call__(self) -> Coroutine[Any, Any, Any]:
        return self._messages.get()


def watch(connection: Connection, handle: Any) -> CancelOnDisconnect:
    """A context manager as `EventSourceResponse` uses it."""
    return CancelOnDisconnect(connection, handle)


async def turns() -> None:
    """Lets all ready tasks run; nobody may cancel this one meanwhile."""
    try:
        for _ in range(20):
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        pytest.fail("expected nobody to cancel the task outside the block, got a cancellation")


def test_task_4_only_a_disconnect_ends_the_wait():
    async def main() -> None:
        connection = Connection()
        task = asyncio.create_task(wait_for_disconnect(connection))
        connection.put("http.request")
        connection.put("http.request")
        await turns()
        if task.done():
            task.result()
        assert not task.done(), "expected to go on waiting after http.request, got an end"
        connection.put("http.disconnect")
        await task

    run(main())


def test_task_4_a_disconnect_cancels_the_block_and_closes_the_request():
    async def main() -> None:
        connection, handle, reached = Connection(), ScriptedHandle(), []
        with watch(connection, handle):
            connection.put("http.disconnect")
            await asyncio.sleep(LONG)
            reached.append("the end of the block")
        assert reached == [], f"expected the block to be cancelled, got {reached}"
        assert handle.num_closed == 1, f"expected one close, got {handle.num_closed}"
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0, "expected no cancellation to be left, got one"

    run(main())


def test_task_4_a_normal_end_closes_the_request_and_stops_watching():
    async def main() -> None:
        connection, handle = Connection(), ScriptedHandle()
        with watch(connection, handle) as cancel_scope:
            pass
        await turns()
        assert handle.num_closed == 1, f"expected one close, got {handle.num_closed}"
        assert handle.on_slow_reader is None, "expected no callback after the end, got one"
        assert cancel_scope._disconnect_task.done(), (
            "expected the task that waits for a disconnect to be cancelled, got it still waiting"
        )

    run(main())


def test_task_4_a_late_disconnect_cancels_nothing():
    """A connection lives on after a response: it may be the next request's."""

    async def main() -> None:
        connection, handle = Connection(), ScriptedHandle()
        with watch(connection, handle) as cancel_scope:
            pass
        cancel_scope._cancel_task()
        await turns()

    run(main())


def test_task_4_exceptions_leave_the_block():
    async def main() -> None:
        handle = ScriptedHandle()
        with pytest.raises(KeyError, match="a bug"), watch(Connection(), handle):
            raise KeyError("a bug")
        assert handle.num_closed == 1, f"expected one close, got {handle.num_closed}"

    run(main())


@pytest.mark.parametrize("client_leaves", [False, True], ids=["alone", "with a disconnect"])
def test_task_4_a_foreign_cancellation_leaves_the_block(client_leaves):
    """A shutdown cancels the task, too: then it must end, not go on after the block."""

    async def main() -> None:
        connection, handle, reached = Connection(), ScriptedHandle(), []

        async def respond() -> None:
            with watch(connection, handle) as cancel_scope:
                if client_leaves:
                    cancel_scope._cancel_task()
                await asyncio.sleep(LONG)
            reached.append("the code after the block")

        task = asyncio.create_task(respond())
        asyncio.get_running_loop().call_soon(task.cancel)  # once the task is in its block
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            task.result()
        assert reached == [], f"expected the task to be cancelled, got to {reached[0]}"
        assert handle.num_closed == 1, f"expected one close, got {handle.num_closed}"

    run(main())


def test_task_4_a_closed_stream_closes_its_request():
    """The whole response: a client that leaves after the first token."""

    async def main() -> None:
        connection, handle, wire = Connection(), ScriptedHandle(["a"], waits=True), Wire()
        task = asyncio.create_task(response_of(handle)({}, connection, wire))
        while not wire.bodies and not task.done():
            await asyncio.sleep(0)
        connection.put("http.disconnect")
        await task
        assert wire.bodies == [b"<a"], f"expected nothing after the disconnect, got {wire.bodies}"
        assert handle.num_closed == 1, f"expected one close, got {handle.num_closed}"

    run(main())


def client_with_requests(num_prompts: int) -> tuple[EngineClient, Any]:
    """A client without an engine thread, whose commands stay queued; and its one request."""
    client = EngineClient(
        Settings(),
        queue.SimpleQueue(),
        Lifecycle(Phase.READY),
        Metrics(["demo"]),
        lambda wake: None,
    )
    client.handle_message(EngineReady(100, 1000, 8, {}))
    handle = client.submit([[1, 2, 3]] * num_prompts, SamplingParams(max_tokens=9), False)
    commands(client)
    return client, handle


def commands(client: EngineClient) -> list[Any]:
    """All queued commands."""
    queued = []
    while not client.command_queue.empty():
        queued.append(client.command_queue.get())
    return queued


def test_task_4_every_unfinished_prompt_is_aborted():
    async def main() -> None:
        client, handle = client_with_requests(3)
        first, second, third = handle.request_ids
        del client._handles[second], client._unfinished[second]  # the engine has ended it
        handle.close()
        expected = [AbortRequest(first), AbortRequest(third)]
        actual = commands(client)
        assert actual == expected, f"expected {expected}, got {actual}"
        assert client.in_flight == set(), "expected no request in flight, got the closed one"

    run(main())


def test_task_4_an_aborted_request_is_load_until_the_engine_has_ended_it():
    """It has its pages until then: the limit of running requests still counts it."""

    async def main() -> None:
        client, handle = client_with_requests(1)
        [request_id] = handle.request_ids
        handle.close()
        assert client.num_unfinished == 1, f"expected 1 unfinished, got {client.num_unfinished}"
        aborted = StreamOutput(request_id, 0, "", (), "abort", None)  # type: ignore[arg-type]
        client.handle_message(StepReport((aborted,), EngineStats()))
        assert client.num_unfinished == 0, (
            f"expected 0 unfinished after the engine's last output, got {client.num_unfinished}"
        )
        await client.wait_until_idle(LONG)

    run(main())


def test_task_4_the_client_is_idle_after_the_last_close():
    async def main() -> None:
        client, handle = client_with_requests(1)
        [request_id] = handle.request_ids
        del client._handles[request_id], client._unfinished[request_id]
        handle.close()
        assert commands(client) == [], "expected nothing to abort, got a command"
        assert client._idle.is_set(), "expected the client to be idle, got requests in flight"

    run(main())
