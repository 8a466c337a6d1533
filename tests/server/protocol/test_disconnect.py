"""A disconnect at any stage releases the request's slot and pages."""

import socket

import pytest

from tests.server.protocols import CHAT
from tests.server.running_server import RunningServer, eventually, request_bytes, served

LONG = {
    "messages": [{"role": "user", "content": "Count to a thousand."}],
    "ignore_eos": True,
    "temperature": 1.0,
}


slow = served("--max-num-seqs", "2", "--max-num-batched-tokens", "16", fault="slow")


def connect(server: RunningServer, body: object, path: str = CHAT.path) -> socket.socket:
    """Opens a connection and sends a request without reading the response."""
    return server.connect(request_bytes(path, body))


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_disconnect_while_decoding(slow, stream, reset):
    connection = connect(slow, {**LONG, "stream": stream})
    before = slow.metric("generation_tokens_total")
    assert eventually(lambda: slow.metric("generation_tokens_total") > before + 2)
    if reset:  # closing sends RST instead of FIN
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
    assert eventually(lambda: slow.is_empty)


def test_disconnect_during_prefill(slow):
    words = {"role": "user", "content": "word " * 1500}
    with connect(slow, {**LONG, "messages": [words]}):
        assert eventually(lambda: slow.metric("num_requests_running") == 1)
    assert eventually(lambda: slow.is_empty)


def test_disconnect_while_queued(slow):
    connections = [connect(slow, LONG) for _ in range(3)]
    assert eventually(lambda: slow.metric("num_requests_waiting") == 1)
    connections.pop().close()
    assert eventually(lambda: slow.metric("num_requests_waiting") == 0)
    assert slow.metric("num_requests_running") == 2
    for connection in connections:
        connection.close()
    assert eventually(lambda: slow.is_empty)


def test_half_close_is_a_disconnect(slow):
    with connect(slow, {**LONG, "stream": True}) as connection:
        assert connection.recv(100)
        connection.shutdown(socket.SHUT_WR)
        assert eventually(lambda: slow.is_empty)


def test_incomplete_request_holds_no_slot(slow):
    with slow.connect(request_bytes(CHAT.path, b"{" + b" " * 8)[:-8]):
        assert slow.get("/health").status_code == 200
    assert slow.is_empty
