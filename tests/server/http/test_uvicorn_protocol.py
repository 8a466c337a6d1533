"""Connections: old and hostile requests, and how often an answer is sent."""

import asyncio
import json
import socket

import pytest

from tiny_llm.server.http.uvicorn_protocol import MAX_HEADER_BYTES, CoalescingTransport

BODY = {"prompt": "Once", "max_tokens": 3, "temperature": 0}


def exchange(server, request: bytes) -> bytes:
    """All that the server answers on a new connection, until it closes it."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(request)
        answer = b""
        while data := connection.recv(2**16):
            answer += data
        return answer


def post(body: bytes, version: str = "1.1", more: str = "") -> bytes:
    head = f"POST /v1/completions HTTP/{version}\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}{more}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def test_a_client_of_http_1_0_gets_no_chunks(server):
    for is_stream in (False, True):
        content = json.dumps({**BODY, "stream": is_stream}).encode()
        head, _, body = exchange(server, post(content, "1.0")).partition(b"\r\n\r\n")
        assert b" 200 " in head
        assert b"transfer-encoding" not in head.lower()
        if is_stream:
            events = body.removesuffix(b"\n\n").split(b"\n\n")
            assert all(one.startswith(b"data: {") for one in events[:-1])
            assert events[-1] == b"data: [DONE]"
        else:
            assert json.loads(body)["choices"][0]["text"]


@pytest.mark.parametrize("line_ends", [True, False])
def test_the_head_of_a_request_is_bounded(server, line_ends):
    name = "X-Many: 1\r\n" * 10 if line_ends else "X-Long: "
    filling = "a: b\r\n" if line_ends else "abcdef"
    request = f"GET /health HTTP/1.1\r\n{name}".encode()
    request += filling.encode() * (5 * MAX_HEADER_BYTES // len(filling))
    try:
        answer = exchange(server, request)
    except ConnectionError:  # it is closed before all was sent
        answer = b"HTTP/1.1 400"
    assert answer.startswith(b"HTTP/1.1 400")
    assert server.get("/health").status_code == 200


def test_half_of_a_character_takes_the_long_way_and_is_refused_with_the_reason(server):
    answer = exchange(server, post(rb'{"prompt": "\ud800"}'))
    assert b" 400 " in answer
    assert b"an unpaired surrogate" in answer


@pytest.mark.parametrize(
    ("body", "told"),
    [(b'{"prompt": "a", "nothing": 1}', b"nothing is not a field"), (b"{", b"is not valid JSON")],
)
def test_what_is_not_valid_is_told_as_everywhere(server, body, told):
    answer = exchange(server, post(body))
    assert b" 400 " in answer
    assert told in answer


def test_a_body_in_chunks_is_read_whole(server):
    content = json.dumps(BODY).encode()
    head = post(b"").split(b"Content-Length")[0]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (content[:9], content[9:]))
    request = head + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    assert b" 200 " in exchange(server, request + chunks + b"0\r\n\r\n")


class Transport:
    def __init__(self):
        self.sent = []

    def write(self, data):
        self.sent.append(data)

    def close(self):
        self.sent.append("closed")


def test_what_is_written_in_a_turn_is_sent_once_and_before_the_end():
    async def run():
        transport = Transport()
        gathering = CoalescingTransport(transport, asyncio.get_running_loop())
        gathering.write(b"head")
        gathering.write(b"body")
        assert transport.sent == []
        await asyncio.sleep(0)
        assert transport.sent == [b"headbody"]
        gathering.write(b"end")
        gathering.close()
        await asyncio.sleep(0)
        assert transport.sent == [b"headbody", b"end", "closed"]

    asyncio.run(run())
