"""Output queue: a slow reader never blocks others and is dropped after a timeout."""

import asyncio
import json
import socket
from types import SimpleNamespace

import anthropic
import pytest

from tests.server.protocol.test_disconnect import LONG
from tests.server.running_server import RunningServer, eventually
from tiny_llm.engine.scheduling.outputs import StreamOutput
from tiny_llm.server.engine_client.output_queue import OutputQueue
from tiny_llm.server.protocol.streaming import EventSourceResponse


def output(text, index=0):
    return StreamOutput("1", index, text, (len(text),), None, None)


def test_full_queue_merges_outputs_without_loss():
    queue = OutputQueue(limit=2, stall_timeout=10, schedule_wake=lambda wake: None)
    for number in range(6):
        queue.put(output(str(number), index=number % 2))
    items = []
    while queue._items:
        items.append(queue._items.popleft())
    assert [(item.index, item.text, len(item.token_ids)) for item in items] == [
        (0, "024", 3),
        (1, "135", 3),
    ]


def test_queue_that_stays_full_is_reported_as_stalled():
    now = 0.0
    queue = OutputQueue(
        limit=1, stall_timeout=10, schedule_wake=lambda wake: None, clock=lambda: now
    )
    queue.put(output("a"))
    queue.put(output("b"))
    now = 9.0
    assert not queue.is_stalled
    now = 11.0
    assert queue.is_stalled


def test_reader_that_blocks_a_write_is_dropped_without_further_output(caplog):
    closed = []

    async def main():
        async def stream_outputs():
            yield [output("a")]

        async def wait_forever(*_):
            await asyncio.Event().wait()

        handle = SimpleNamespace(
            slow_reader_timeout=0.05,
            on_slow_reader=None,
            stream_outputs=stream_outputs,
            close=lambda: closed.append(True),
        )
        serializer = SimpleNamespace(start_events=lambda: b"", delta_events=lambda _: b"a")
        response = EventSourceResponse(serializer, handle, keep_alive=15)
        await asyncio.wait_for(response({}, wait_forever, wait_forever), 60)

    asyncio.run(main())
    assert closed
    assert "read its stream too slowly" in caplog.text


@pytest.fixture(scope="module")
def slow_server():
    """Server with slow steps that drops slow readers after 0.5 s."""
    running = RunningServer(fault="impatient")
    yield running
    assert running.stop() == 0


@pytest.mark.slow  # waits for full buffers, then for the timeout
def test_stalled_reader_is_dropped(slow_server):
    body = {
        **LONG,
        "stream": True,
        "logprobs": True,
        "top_logprobs": 20,
        "max_tokens": 1500,
        "n": 8,
    }
    content = json.dumps(body).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = slow_server.url.removeprefix("http://").split(":")
    connection.connect((host, int(port)))
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(content), content)
    )
    slow_server.wait_for("read its stream too slowly")
    assert eventually(lambda: slow_server.is_empty)
    connection.close()


def test_keepalive_comments(slow_server):
    body = {"prompt": "Hello", "max_tokens": 20, "ignore_eos": True, "stream": True}
    response = slow_server.post("/v1/completions", body)
    assert ": keep-alive\n\n" in response.text
    assert response.text.endswith("data: [DONE]\n\n")


def test_keepalive_pings_in_messages(slow_server):
    claude = anthropic.Anthropic(base_url=slow_server.url, api_key="none", max_retries=0)
    messages = [{"role": "user", "content": "Hello"}]
    with claude.messages.stream(model="demo", max_tokens=20, messages=messages) as stream:
        assert stream.get_final_message().content[0].text
    body = {"max_tokens": 20, "messages": messages, "stream": True}
    text = slow_server.post("/v1/messages", body).text
    assert 'event: ping\ndata: {"type":"ping"}\n\n' in text
