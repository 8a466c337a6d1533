"""HTTP connections: HTTP/1.0, hostile requests, slow readers, socket options."""

import asyncio
import contextlib
import json
import socket

import pytest
import uvicorn
from uvicorn.server import ServerState

from tiny_llm.server.http import uvicorn_protocol
from tiny_llm.server.http.uvicorn_protocol import MAX_HEADER_BYTES, HttpProtocol

BODY = {"prompt": "Once", "max_tokens": 3, "temperature": 0}


def exchange(server, request: bytes) -> bytes:
    """Sends a request on a new connection; reads until the server closes it."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(request)
        response = b""
        while data := connection.recv(2**16):
            response += data
        return response


def request_bytes(body: bytes, version: str = "1.1", extra_headers: str = "") -> bytes:
    head = f"POST /v1/completions HTTP/{version}\r\nHost: x\r\nContent-Type: application/json\r\n"
    return (
        f"{head}{extra_headers}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )


@pytest.mark.parametrize("line_ends", [True, False])
def test_request_head_size_is_bounded(server, line_ends):
    name = "X-Many: 1\r\n" * 10 if line_ends else "X-Long: "
    padding = "a: b\r\n" if line_ends else "abcdef"
    request = f"GET /health HTTP/1.1\r\n{name}".encode()
    request += padding.encode() * (5 * MAX_HEADER_BYTES // len(padding))
    try:
        response = exchange(server, request)
    except ConnectionError:  # the server may close before the request is fully sent
        response = b"HTTP/1.1 400"
    assert response.startswith(b"HTTP/1.1 400")
    assert server.get("/health").status_code == 200


def test_lone_surrogate_is_rejected_with_a_reason(server):
    response = exchange(server, request_bytes(rb'{"prompt": "\ud800"}'))
    assert b" 400 " in response
    assert b"an unpaired surrogate" in response


@pytest.mark.parametrize(
    ("body", "message"),
    [(b'{"prompt": 1}', b"prompt must be a string, got 1."), (b"{", b"is not valid JSON")],
)
def test_invalid_body_is_rejected_with_a_reason(server, body, message):
    response = exchange(server, request_bytes(body))
    assert b" 400 " in response
    assert message in response


def test_chunked_body_is_read_completely(server):
    content = json.dumps(BODY).encode()
    head = request_bytes(b"").split(b"Content-Length")[0]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (content[:9], content[9:]))
    request = head + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    assert b" 200 " in exchange(server, request + chunks + b"0\r\n\r\n")


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


def test_bytes_after_the_body_do_not_end_a_response(monkeypatch):
    monkeypatch.setattr(uvicorn_protocol, "HEADER_TIMEOUT", 0.05)

    async def slow_app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(0.2)
        await send({"type": "http.response.body", "body": b"complete"})

    async def run():
        async with connected(slow_app) as (_, reader, writer):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"\r\n")
            assert b"complete" in await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 60)

    asyncio.run(run())


UNREAD_BYTES = 2**23


async def send_large_body(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * UNREAD_BYTES})


@contextlib.asynccontextmanager
async def unread_response():
    """Requests a large response; yields (protocol, reader) before reading it."""
    async with connected(send_large_body) as (protocol, reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        assert protocol.transport.get_write_buffer_size() > 0
        yield protocol, reader


def test_slow_but_steady_reader_is_not_disconnected():
    async def run():
        async with unread_response() as (protocol, reader):
            num_read = num_timeouts = 0
            while num_unsent := protocol.transport.get_write_buffer_size():
                while protocol.transport.get_write_buffer_size() == num_unsent:
                    num_read += len(await reader.read(2**10))
                protocol._on_send_timeout(num_unsent)
                num_timeouts += 1
            assert num_timeouts > 1
            while num_read < UNREAD_BYTES:
                data = await reader.read(2**16)
                assert data
                num_read += len(data)

    asyncio.run(run())


def test_client_that_reads_nothing_is_disconnected(monkeypatch, caplog):
    monkeypatch.setattr(uvicorn_protocol, "SEND_TIMEOUT", 0.05)

    async def run():
        async with unread_response() as (protocol, reader):
            while not protocol.transport.is_closing():
                await asyncio.sleep(0.01)
            with contextlib.suppress(ConnectionResetError):
                assert len(await reader.read()) < UNREAD_BYTES

    asyncio.run(asyncio.wait_for(run(), 60))
    assert "disconnected a client that read nothing for 0.05 s" in caplog.text
