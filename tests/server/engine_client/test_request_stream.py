"""Request streams: merged outputs, keep-alives, disconnection of idle readers."""

import contextlib
import json
import socket

import anthropic
import openai
import pytest

from tests.server.running_server import RunningServer, eventually
from tiny_llm.engine.scheduling.request import StreamOutput
from tiny_llm.server.engine_client.request_stream import RequestStream


def output(text, index=0):
    return StreamOutput("1", index, text, (len(text),), None)


def test_full_stream_merges_outputs_without_loss():
    stream = RequestStream(["1"], 1, limit=2, schedule_wake=lambda wake: None)
    for number in range(6):
        stream.put(output(str(number), index=number % 2))
    items = []
    while stream._items:
        items.append(stream._items.popleft())
    assert [(item.index, item.text, len(item.token_ids)) for item in items] == [
        (0, "024", 3),
        (1, "135", 3),
    ]


@pytest.fixture(scope="module")
def slow_server():
    """Server with slow steps; disconnects clients that read nothing for 0.5 s."""
    running = RunningServer(fault="impatient")
    yield running
    assert running.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_stream", "max_tokens"),
    [(True, 1500), (True, 12), (False, 12)],
    ids=["output continues", "output has ended", "full response"],
)
def test_client_that_stops_reading_is_disconnected(slow_server, is_stream, max_tokens):
    body = {
        "prompt": "Once",
        "stream": is_stream,
        "logprobs": 20,
        "max_tokens": max_tokens,
        "n": 8,
        "temperature": 1.0,
        "ignore_eos": True,
    }
    num_lines = len(slow_server.lines)
    content = json.dumps(body).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = slow_server.url.removeprefix("http://").split(":")
    connection.connect((host, int(port)))
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(content), content)
    )
    assert eventually(lambda: "read nothing for 0.5 s" in "".join(slow_server.lines[num_lines:]))
    assert eventually(lambda: slow_server.is_empty)
    response = b""
    with connection, contextlib.suppress(ConnectionResetError):
        while data := connection.recv(2**16):
            response += data
    assert response.startswith(b"HTTP/1.1 200 ")
    assert b"[DONE]" not in response
    assert b'"usage":{' not in response


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


def test_keepalive_events_in_responses(slow_server):
    """Codex counts events, not comments."""
    client = openai.OpenAI(base_url=slow_server.url + "/v1", api_key="none", max_retries=0)
    body = {"model": "demo", "input": "Hello", "max_output_tokens": 20}
    with client.responses.stream(**body) as stream:
        events = list(stream)
    assert events[-1].response.output[-1].content[0].text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events].count("response.in_progress") > 1
    text = slow_server.post("/v1/responses", {**body, "stream": True}).text
    assert not any(line.startswith(":") for line in text.splitlines())
