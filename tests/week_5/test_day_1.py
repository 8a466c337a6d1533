"""Week 5, day 1, optional: server-sent events, streams and cancellation."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the server's dependencies")

from tests.support import assert_equal
from tests.week_5.support import run
from tiny_llm import demo
from tiny_llm.engine.engine_args import EngineArgs
from tiny_llm.engine.inputs.sampling_params import SamplingParams
from tiny_llm.engine.scheduling.request import StreamOutput
from tiny_llm.server.engine_client.messages import (
    AbortRequest,
    EngineReady,
    EngineStats,
    StepReport,
)
from tiny_llm.server.engine_client.metrics import Metrics
from tiny_llm.server.http.errors import INTERNAL_ERROR, ApiError
from tiny_llm.server.models.served_model import Phase, ServedModel
from tiny_llm.server.protocol import streaming
from tiny_llm.server.protocol.streaming import (
    TEXT_PLACEHOLDER,
    CancelOnDisconnect,
    EventSourceResponse,
    EventTemplate,
    sse_event,
    wait_for_disconnect,
)
from tiny_llm.server.settings import ModelSpec, Settings

LONG = 1000.0  # seconds; longer than any test
TEXTS = ["Paris", "", 'She said "no" \\o/', "two\nlines", "\r\n\r\n", "\n\ndata: forged", "né 🦆 "]


def parse_events(stream: bytes) -> list[tuple[str, str]]:
    """(type, data) of each event, parsed as the HTML standard specifies."""
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


class ScriptedStream:
    """Request stream with scripted outputs: batches of texts, or an error."""

    def __init__(self, *script: list[str] | BaseException, waits: bool = False):
        self.num_requested = self.num_closed = 0
        self._script, self._waits = script, waits

    async def batches(self) -> AsyncIterator[list[StreamOutput]]:
        """Yields the batches, then waits forever if `waits` is set."""
        for item in self._script:
            self.num_requested += 1
            if isinstance(item, BaseException):
                raise item
            yield [StreamOutput("0", 0, text, (7,), None) for text in item]
        if self._waits:
            await asyncio.Event().wait()

    def close(self) -> None:
        self.num_closed += 1


class PlainSerializer:
    """Serializes a stream as the outputs' texts between `<` and `>`."""

    def start_events(self) -> bytes:
        return b"<"

    def delta_events(self, output: StreamOutput) -> bytes:
        return output.text.encode()

    def end_events(self) -> bytes:
        return b">"

    def error_events(self, error: ApiError) -> bytes:
        return f"({error.status}: {error.message})".encode()


class SendRecorder:
    """ASGI `send` that records messages; `pause` simulates a full socket."""

    def __init__(self, pause: asyncio.Event | None = None):
        self.messages: list[Any] = []
        self._pause = pause

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)
        if self._pause is not None:
            await self._pause.wait()

    @property
    def bodies(self) -> list[bytes]:
        return [one["body"] for one in self.messages if one["type"] == "http.response.body"]

    @property
    def num_heads(self) -> int:
        return len(self.messages) - len(self.bodies)


def response_of(stream: ScriptedStream) -> EventSourceResponse:
    """A response that sends no keep-alive comments."""
    return EventSourceResponse(PlainSerializer(), stream, keep_alive=LONG)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def long_header_delay(monkeypatch):
    """Makes headers wait for the first output, even on a slow machine."""
    monkeypatch.setattr(streaming, "HEADER_DELAY", LONG)


@pytest.mark.parametrize(
    ("data", "name", "expected"),
    [
        ({"text": "Paris"}, None, b'data: {"text":"Paris"}\n\n'),
        ([1, None], "ping", b"event: ping\ndata: [1,null]\n\n"),
    ],
    ids=["default type", "named"],
)
def test_task_1_example(data, name, expected):
    assert_equal(sse_event(data, name), expected)


@pytest.mark.parametrize("text", TEXTS, ids=repr)
def test_task_1_client_reads_the_same_texts(text):
    """Generated text cannot end an event or start another one."""
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
    assert_equal(template("again"), event("again"), "the template to be reusable")


async def test_task_2_each_batch_is_one_write():
    stream, recorder = ScriptedStream(["Par", "is"], ["", ""], ["."]), SendRecorder()
    end = await response_of(stream)._send_outputs(recorder)
    hint = "the start events with the first batch and no write for a batch without events"
    assert_equal(recorder.bodies, [b"<Paris", b"."], hint)
    assert_equal(end, b">", "the end events to be returned")
    more = [one.get("more_body") for one in recorder.messages[1:]]
    assert more == [True, True], f"expected more_body until the stream ends, got {more}"


async def test_task_2_headers_and_the_last_chunk():
    recorder = SendRecorder()
    await response_of(ScriptedStream(["a"], ["b"], ["c"]))._send_outputs(recorder)
    kinds = [one["type"].rpartition(".")[2] for one in recorder.messages]
    assert_equal(kinds, ["start", "body", "body", "body"], "one start message, then bodies")
    head = recorder.messages[0]
    content_type = dict(head["headers"])[b"content-type"]
    assert head["status"] == 200
    assert content_type.startswith(b"text/event-stream"), f"expected events, got {content_type!r}"
    recorder = SendRecorder()
    response = response_of(ScriptedStream())
    await response._send(recorder, b"a")
    await response._send(recorder, b"b", is_last=True)
    more = [one["more_body"] for one in recorder.messages[1:]]
    assert more == [True, False], f"expected the last chunk to end the body, got {more}"


async def test_task_2_headers_are_sent_once_despite_keep_alive():
    """A timer may send a keep-alive comment while `send` waits for the client."""
    open_socket = asyncio.Event()
    response, recorder = response_of(ScriptedStream()), SendRecorder(open_socket)
    both = asyncio.gather(response._send(recorder, b"token"), response._send(recorder, b": ping"))
    await asyncio.sleep(0)
    open_socket.set()
    await both
    assert_equal(recorder.num_heads, 1, "the number of messages with headers")


async def test_task_2_start_events_wait_for_the_first_output():
    """Start events may contain a cached token count, unknown until then."""
    stream, made_at = ScriptedStream(["a"], ["b"]), []

    class Serializer(PlainSerializer):
        def start_events(self) -> bytes:
            made_at.append(stream.num_requested)
            return b"<"

    response = EventSourceResponse(Serializer(), stream, LONG)  # type: ignore[arg-type]
    await response._send_outputs(SendRecorder())
    assert made_at == [1], f"expected start events once, after batch 1, got them after {made_at}"


async def test_task_2_next_batch_waits_for_the_client():
    """Backpressure: outputs that cannot be sent are not requested."""
    open_socket, stream = asyncio.Event(), ScriptedStream(["a"], ["b"], ["c"])
    task = asyncio.create_task(response_of(stream)._send_outputs(SendRecorder(open_socket)))
    for _ in range(20):
        await asyncio.sleep(0)
    if task.done():
        task.result()
    assert_equal(stream.num_requested, 1, "the batches requested before the first write ends")
    open_socket.set()
    await task


def send_all(*script: Any) -> tuple[SendRecorder, list[bytes]]:
    recorder = SendRecorder()
    run(response_of(ScriptedStream(*script))._send_all(recorder))
    return recorder, recorder.bodies


def test_task_3_last_event():
    recorder, bodies = send_all(["a"], ["b"])
    assert bodies == [b"<a", b"b", b">"], f"expected the end events last, got {bodies}"
    assert recorder.messages[-1]["more_body"] is False, "expected the body to end, got more_body"
    recorder, bodies = send_all(["a"], ApiError(504, "Too slow."))
    expected = [b"<a", b"(504: Too slow.)"]
    assert bodies == expected, f"expected {expected}, got {bodies}"
    assert recorder.num_heads == 1, f"expected one message with headers, got {recorder.num_heads}"
    assert recorder.messages[-1]["more_body"] is False, "expected the body to end, got more_body"
    _, bodies = send_all(ApiError(504, "Too slow."))
    assert bodies == [b"<(504: Too slow.)"], f"expected start events and an error, got {bodies}"


def test_task_3_internal_error_is_logged_but_not_sent(caplog):
    _, bodies = send_all(["a"], RuntimeError("the password is duck"))
    expected = [b"<a", f"(500: {INTERNAL_ERROR})".encode()]
    assert bodies == expected, f"expected a generic message for the client, got {bodies}"
    assert "the password is duck" in caplog.text, "expected the traceback in the log, got none"


async def test_task_3_cancellation_sends_nothing():
    """A stream is cancelled if the client disconnects or the server shuts down."""
    recorder = SendRecorder()
    task = asyncio.create_task(response_of(ScriptedStream(["a"], waits=True))._send_all(recorder))
    while not recorder.bodies:
        if task.done():
            task.result()
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled(), "expected CancelledError to propagate, got a normal return"
    assert_equal(recorder.bodies, [b"<a"], "no writes after the cancellation")


async def test_task_3_no_keep_alive_follows_the_end():
    response, was_cancelled = response_of(ScriptedStream(["a"])), []

    async def send(message: Any) -> None:
        if message.get("more_body") is False:
            assert response._keep_alive_task is not None
            was_cancelled.append(response._keep_alive_task.cancelling() > 0)

    await response._send_all(send)
    assert_equal(was_cancelled, [True], "the keep-alives to be cancelled before the last write")


class Connection:
    """ASGI `receive` callable fed by the test."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, kind: str) -> None:
        self._messages.put_nowait({"type": kind})

    def __call__(self) -> Coroutine[Any, Any, Any]:
        return self._messages.get()


async def run_ready_tasks() -> None:
    """Runs all ready tasks; fails if one of them cancels the current task."""
    try:
        for _ in range(20):
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        pytest.fail("expected no cancellation outside the block, got one")


async def test_task_4_only_disconnect_ends_the_wait():
    connection = Connection()
    task = asyncio.create_task(wait_for_disconnect(connection))
    connection.put("http.request")
    connection.put("http.request")
    await run_ready_tasks()
    if task.done():
        task.result()
    assert not task.done(), "expected the wait to continue after http.request, got a return"
    connection.put("http.disconnect")
    await task


async def test_task_4_disconnect_cancels_the_block_and_closes_the_request():
    connection, stream, reached = Connection(), ScriptedStream(), []
    with CancelOnDisconnect(connection, stream):
        connection.put("http.disconnect")
        await asyncio.sleep(LONG)
        reached.append("the end of the block")
    assert reached == [], f"expected the block to be cancelled, got {reached}"
    assert_equal(stream.num_closed, 1, "one call of close")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0, "expected no pending cancellation, got one"


async def test_task_4_exit_of_the_block():
    connection, stream = Connection(), ScriptedStream()
    with CancelOnDisconnect(connection, stream) as cancel_scope:
        pass
    cancel_scope._cancel_task()  # a late disconnect, which cancels nothing
    await run_ready_tasks()
    assert_equal(stream.num_closed, 1, "one call of close")
    assert cancel_scope._disconnect_task.done(), "expected no pending disconnect task"
    stream = ScriptedStream()
    with pytest.raises(KeyError, match="internal error"), CancelOnDisconnect(Connection(), stream):
        raise KeyError("internal error")
    assert_equal(stream.num_closed, 1, "one call of close")


async def test_task_4_exceptions_propagate_after_a_disconnect():
    """Only the cancellation is suppressed, not an error in the block's cleanup."""
    connection, stream, raised = Connection(), ScriptedStream(), []
    try:
        with CancelOnDisconnect(connection, stream):
            connection.put("http.disconnect")
            try:
                await asyncio.sleep(LONG)
            finally:
                raise ValueError("failed cleanup")
    except ValueError as error:
        raised.append(str(error))
    assert_equal(raised, ["failed cleanup"], "the ValueError to propagate after a disconnect")
    assert_equal(stream.num_closed, 1, "one call of close")


@pytest.mark.parametrize("client_leaves", [False, True], ids=["alone", "with a disconnect"])
async def test_task_4_external_cancellation_propagates(client_leaves):
    """A task cancelled by a shutdown must not continue after the block."""
    connection, stream, reached = Connection(), ScriptedStream(), []

    async def respond() -> None:
        with CancelOnDisconnect(connection, stream) as cancel_scope:
            if client_leaves:
                cancel_scope._cancel_task()
            await asyncio.sleep(LONG)
        reached.append("the code after the block")

    task = asyncio.create_task(respond())
    # Cancels the task after it has entered the block.
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is not None:
        task.result()
    assert reached == [], f"expected the task to be cancelled, but it reached {reached[0]}"
    assert_equal(stream.num_closed, 1, "one call of close")


async def test_task_4_closed_stream_closes_its_request():
    """The client disconnects after the first event of an endless stream."""
    connection, stream, recorder = (Connection(), ScriptedStream(["a"], waits=True), SendRecorder())
    task = asyncio.create_task(response_of(stream)({}, connection, recorder))
    while not recorder.bodies and not task.done():
        await asyncio.sleep(0)
    connection.put("http.disconnect")
    await task
    assert_equal(recorder.bodies, [b"<a"], "nothing after the disconnect")
    assert_equal(stream.num_closed, 1, "one call of close")


async def model_with_requests(num_prompts: int) -> tuple[ServedModel, Any]:
    """A model with a request, but without its engine thread, so commands stay queued."""
    spec = ModelSpec(("demo",), EngineArgs(str(demo.TARGET_PATH)), lambda: None)  # type: ignore[arg-type,return-value]
    model = ServedModel(spec, Settings(), Metrics(["demo"]), lambda: None)
    model.handle_message(EngineReady(100, 1000, 8, {}))
    model.transition(Phase.READY)
    stream = await model.submit([[1, 2, 3]] * num_prompts, SamplingParams(max_tokens=9))
    commands(model)
    return model, stream


def commands(model: ServedModel) -> list[Any]:
    queued = []
    while not model.command_queue.empty():
        queued.append(model.command_queue.get())
    return queued


async def test_task_4_requests_in_flight():
    model, stream = await model_with_requests(3)
    first, second, third = stream.request_ids
    # As if the engine had finished the request.
    del model._streams[second], model._unfinished[second]
    stream.close()
    expected = [AbortRequest(first), AbortRequest(third)]
    assert_equal(commands(model), expected)
    assert model.in_flight == set(), "expected no request in flight, got the closed one"
    model, stream = await model_with_requests(1)
    [request_id] = stream.request_ids
    del model._streams[request_id], model._unfinished[request_id]
    stream.close()
    assert commands(model) == [], "expected no abort, got a command"
    assert model._idle.is_set(), "expected the model to be idle, got requests in flight"


async def test_task_4_aborted_request_counts_until_the_engine_finishes_it():
    """Until it is finished, the request holds pages and counts toward the limit."""
    model, stream = await model_with_requests(1)
    [request_id] = stream.request_ids
    stream.close()
    assert model.num_unfinished == 1, f"expected 1 unfinished, got {model.num_unfinished}"
    aborted = StreamOutput(request_id, 0, "", (), "abort")
    model.handle_message(StepReport((aborted,), EngineStats()))
    assert_equal(model.num_unfinished, 0, "unfinished requests after the engine's last output")
    await model.wait_until_idle(LONG)
