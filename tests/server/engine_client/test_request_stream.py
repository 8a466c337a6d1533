"""Request streams: keep-alives, disconnection of idle readers."""

import contextlib
import socket

import pytest

from tests.server.protocols import MESSAGES, PATHS, RESPONSES, small_body
from tests.server.running_server import eventually, request_bytes, served

# With slow steps; disconnects clients that read nothing for 0.5 s.
slow_server = served(fault="impatient")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_stream", "max_tokens"),
    [(True, 1500), (True, 12), (False, 12)],
    ids=["output continues", "output has ended", "full response"],
)
def test_client_that_stops_reading_is_disconnected(slow_server, is_stream, max_tokens):
    body = {"prompt": "Once", "stream": is_stream, "logprobs": 20, "max_tokens": max_tokens, "n": 8}
    body |= {"temperature": 1.0, "ignore_eos": True}
    num_lines = len(slow_server.lines)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = slow_server.url.removeprefix("http://").split(":")
    connection.connect((host, int(port)))
    connection.sendall(request_bytes("/v1/completions", body))
    assert eventually(lambda: "read nothing for 0.5 s" in "".join(slow_server.lines[num_lines:]))
    assert eventually(lambda: slow_server.is_empty)
    response = b""
    with connection, contextlib.suppress(ConnectionResetError):
        while data := connection.recv(2**16):
            response += data
    assert response.startswith(b"HTTP/1.1 200 ")
    assert b"[DONE]" not in response
    assert b'"usage":{' not in response


def test_keepalives(slow_server):
    """Comments; in the Messages API, pings; in the Responses API, events, which Codex counts."""
    for path in PATHS:
        body = small_body(path, "Hello", stream=True, max_tokens=20)
        text = slow_server.post(path, body).text
        if path == MESSAGES.path:
            assert 'event: ping\ndata: {"type":"ping"}\n\n' in text
        elif path == RESPONSES.path:
            assert not any(line.startswith(":") for line in text.splitlines())
        else:
            assert ": keep-alive\n\n" in text
            assert text.endswith("data: [DONE]\n\n")
    assert MESSAGES.ask(slow_server, "Hello", stream=True, max_tokens=20).text
    body = RESPONSES.body("Hello", max_tokens=20)
    with slow_server.openai.responses.stream(**body) as stream:
        events = list(stream)
    assert events[-1].response.output[-1].content[0].text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events].count("response.in_progress") > 1
