"""HTTP connections: HTTP/1.0, hostile requests, slow readers, socket options."""

import asyncio
import contextlib
import functools
import json
import socket

import pytest
import uvicorn
from uvicorn.server import ServerState

from tests.server.running_server import read_all, request_bytes
from tiny_llm.server.http import uvicorn_protocol
from tiny_llm.server.http.uvicorn_protocol import MAX_HEADER_BYTES, HttpProtocol

BODY = {"prompt": "Once", "max_tokens": 3, "temperature": 0}


def post(body: object, version: str = "1.1") -> bytes:
    return request_bytes("/v1/completions", body, version, "Connection: close\r\n")


def exchange(server, request: bytes) -> bytes:
    """Sends a request on a new connection; reads until the server closes it."""
    return read_all(server.connect(request))


def test_http_1_0_response_is_not_chunked(server):
    for is_stream in (False, True):
        request = post({**BODY, "stream": is_stream}, "1.0")
        head, _, body = exchange(server, request).partition(b"\r\n\r\n")
        assert b" 200 " in head
        assert b"transfer-encoding" not in head.lower()
        if is_stream:
            events = body.removesuffix(b"\n\n").split(b"\n\n")
            assert all(event.startswith(b"data: {") for event in events[:-1])
            assert events[-1] == b"data: [DONE]"
        else:
            assert json.loads(body)["choices"][0]["text"]


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [1, 7, 200, 10**6])
def test_upgrade_is_ignored(server, protocol, chunked, size):
    """Java's default client asks for h2c; the same connection then serves further requests."""
    body = json.dumps(BODY).encode()
    headers = (
        "Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQB\r\n"
    )
    request = request_bytes("/v1/completions", body, headers=f"{headers}Upgrade: {protocol}\r\n")
    if chunked:
        head = request.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
        chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:9], body[9:], b"")]
        request = head.removesuffix(body) + b"".join(chunks)
    data = request * 2 + post(BODY)
    connection = server.connect()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for start in range(0, len(data), size):
        connection.sendall(data[start : start + size])
    response = read_all(connection)
    assert response.count(b"HTTP/1.1 200 OK") == response.count(b'"object":"text_completion"') == 3


def test_connect_ends_the_connection(server):
    for header in ("", "Connection: Upgrade\r\nUpgrade: h2c\r\n"):
        request = f"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n{header}Connection: close\r\n\r\n"
        assert b" 200 " not in exchange(server, request.encode())
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize("line_ends", [True, False])
def test_request_head_size_is_bounded(server, line_ends):
    name, padding = ("X-Many: 1\r\n" * 10, "a: b\r\n") if line_ends else ("X-Long: ", "abcdef")
    request = f"GET /health HTTP/1.1\r\n{name}".encode()
    request += padding.encode() * (5 * MAX_HEADER_BYTES // len(padding))
    try:
        response = exchange(server, request)
    except ConnectionError:  # the server may close before the request is fully sent
        response = b"HTTP/1.1 400"
    assert response.startswith(b"HTTP/1.1 400")
    assert server.get("/health").status_code == 200


@contextlib.asynccontextmanager
async def connected(app=None):
    """Connects a client to an `HttpProtocol`; yields (protocol, reader, writer)."""
    config = uvicorn.Config(app=app or (lambda *_: None), log_config=None)
    config.load()
    protocol = HttpProtocol(config, ServerState(), {})
    # The socket has protocol number 0, as in `serve`, so asyncio does not set TCP_NODELAY.
    listening_socket = socket.socket()
    listening_socket.bind(("127.0.0.1", 0))
    server = await asyncio.get_running_loop().create_server(lambda: protocol, sock=listening_socket)
    reader, writer = await asyncio.open_connection(*listening_socket.getsockname())
    while protocol.transport is None:
        await asyncio.sleep(0)
    yield protocol, reader, writer
    writer.close()
    protocol.transport.close()
    server.close()


def in_event_loop(test):
    """Runs an asynchronous test."""
    run = functools.wraps(test)
    return run(lambda **fixtures: asyncio.run(asyncio.wait_for(test(**fixtures), 60)))


@in_event_loop
async def test_tcp_nodelay_is_set():
    async with connected() as (protocol, _, _):
        connection = protocol.transport.get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("sent", [b"", b"GET / HT"])
@in_event_loop
async def test_incomplete_head_closes_the_connection(monkeypatch, sent):
    monkeypatch.setattr(uvicorn_protocol, "HEADER_TIMEOUT", 0.05)
    async with connected() as (_, reader, writer):
        writer.write(sent)
        assert await reader.read() == b""


@in_event_loop
async def test_bytes_after_the_body_do_not_end_a_response(monkeypatch):
    monkeypatch.setattr(uvicorn_protocol, "HEADER_TIMEOUT", 0.05)

    async def slow_app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(0.2)
        await send({"type": "http.response.body", "body": b"complete"})

    async with connected(slow_app) as (_, reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\r\n")
        assert b"complete" in await reader.readuntil(b"0\r\n\r\n")


UNREAD_BYTES = 2**23


async def send_large_body(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * UNREAD_BYTES})


@in_event_loop
async def test_slow_but_steady_reader_is_not_disconnected():
    async with connected(send_large_body) as (protocol, reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        num_read = num_timeouts = 0
        while num_unsent := protocol.transport.get_write_buffer_size():
            while protocol.transport.get_write_buffer_size() == num_unsent:
                num_read += len(await reader.read(2**10))
            protocol._on_send_timeout(num_unsent)
            num_timeouts += 1
        assert num_timeouts > 1
        await reader.readexactly(UNREAD_BYTES - num_read)
