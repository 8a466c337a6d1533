"""Limits: queue, body size, JSON size, timeouts, origins, API key."""

import contextlib
import gzip
import json
import select
import socket
import zlib

import httpx2
import openai
import pytest

from tests.server.protocol.test_disconnect import LONG, connect
from tests.server.running_server import RunningServer, eventually
from tiny_llm.server.http.middleware import PIECE_BYTES, BodyDecoder

KEY = "a key with é"


@pytest.fixture(scope="module")
def limited_server():
    running = RunningServer(
        *("--max-num-seqs", "1", "--max-queue", "1", "--max-body-bytes", "5000"),
        *("--request-timeout", "2", "--cors-origin", "https://page.example"),
        *("--allowed-host", "tiny.example"),
        fault="slow",
    )
    yield running
    assert running.stop() == 0


@pytest.mark.slow
def test_full_queue_is_429_with_retry_after(limited_server):
    connections = [connect(limited_server, {**LONG, "stream": True}) for _ in range(2)]
    assert eventually(lambda: limited_server.metric("num_requests_waiting") == 1)
    rejected = limited_server.post("/v1/chat/completions", LONG)
    assert rejected.status_code == 429
    assert rejected.headers["retry-after"] == "1"
    assert rejected.json()["error"]["type"] == "rate_limit_error"
    for connection in connections:
        connection.close()
    assert eventually(lambda: limited_server.is_empty)


@pytest.mark.parametrize("declared", [True, False])
def test_large_body_is_413(limited_server, declared):
    content = b'{"x": "' + b"x" * 10_000 + b'"}'
    headers = {"content-type": "application/json"}
    response = httpx2.post(
        limited_server.url + "/v1/chat/completions",
        content=content if declared else iter([content[:4000], content[4000:]]),
        headers=headers,
    )
    assert response.status_code == 413
    assert "5000 bytes" in response.json()["error"]["message"]


def test_large_chunked_body_is_413(limited_server):
    host, port = limited_server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunk = b'{"prompt": "' + b"a" * 6000
        connection.sendall(head.encode() + b"%x\r\n" % len(chunk) + chunk + b"\r\n")
        assert connection.recv(20).split()[1] in (b"413", b"400")


@pytest.mark.parametrize("is_chunked", [False, True])
def test_too_many_values_and_levels_are_400(server, is_chunked):
    bodies = {
        "has more than 131,072 JSON values": b'{"prompt": [' + b"1," * 200_000 + b"1]}",
        "has more than 16,384 JSON objects and lists": b'{"messages": ['
        + b"{}," * 20_000
        + b"{}]}",
        "is nested more than 100 levels deep": b'{"metadata": ' + b"[" * 100 + b"]" * 100 + b"}",
    }
    for reason, content in bodies.items():
        response = httpx2.post(
            server.url + "/v1/chat/completions",
            content=iter([content[:70_000], content[70_000:]]) if is_chunked else content,
            headers={"content-type": "application/json"},
        )
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(f"the body {reason}; ")


def test_default_body_limit(server):
    content = b'{"prompt": "' + b"x" * 2**22 + b'"}'
    headers = {"content-type": "application/json"}
    response = httpx2.post(server.url + "/v1/completions", content=content, headers=headers)
    assert response.status_code == 413
    assert response.json()["error"]["message"] == (
        "The body exceeds the maximum of 4194304 bytes; send a smaller body, or raise the "
        "server's --max-body-bytes."
    )


def start_body(server):
    """Sends a request head and the first byte of its body."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    head = "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: 50\r\n\r\n{{".encode())
    return connection


def read_all(connection):
    with connection, connection.makefile("rb") as response:
        return response.read()


@pytest.mark.slow
def test_incomplete_body_is_408():
    server = RunningServer(fault="impatient")
    response = read_all(start_body(server))
    assert response.startswith(b"HTTP/1.1 408 ")
    assert b"The body is incomplete: no data for 0.5 s; resend the request." in response
    assert server.stop() == 0


@pytest.mark.slow
def test_incomplete_body_while_draining_is_503():
    server = RunningServer()
    connection = start_body(server)
    assert server.get("/health").status_code == 200  # by now, the server has read the request head
    assert server.stop() == 0
    response = read_all(connection)
    assert response.startswith(b"HTTP/1.1 503 ")
    assert b"The server is shutting down" in response
    assert "Traceback" not in "".join(server.lines)


@pytest.mark.slow
def test_connections_beyond_the_file_limit_are_503():
    server = RunningServer(max_files=64)
    host, port = server.url.removeprefix("http://").split(":")
    connections = [socket.create_connection((host, int(port)), timeout=60) for _ in range(100)]
    rejected, _, _ = select.select(connections, [], [], 60)
    response = rejected[0].recv(1000)
    assert response.startswith(b"HTTP/1.1 503 ")
    assert b"The server has reached its limit of 16 connections; retry later." in response
    for connection in connections:
        connection.close()
    assert eventually(lambda: is_healthy(server))
    assert server.stop() == 0
    log = "".join(server.lines)
    assert "Traceback" not in log
    assert log.count("out of file descriptors") <= 2


def is_healthy(server):
    try:
        return server.get("/health").status_code == 200
    except httpx2.TransportError:
        return False


@pytest.mark.slow
def test_request_timeout_is_an_error(limited_server):
    response = limited_server.post("/v1/chat/completions", LONG)
    assert response.status_code == 504
    assert response.json()["error"]["type"] == "timeout_error"
    response = limited_server.post("/v1/chat/completions", {**LONG, "stream": True})
    assert response.status_code == 200  # the stream starts before the timeout
    *_, error, end, rest = response.text.split("\n\n")
    assert "timeout_error" in error
    assert (end, rest) == ("data: [DONE]", "")
    assert eventually(lambda: limited_server.is_empty)


def test_cross_origin_requests(limited_server):
    def allowed(origin):
        response = httpx2.get(limited_server.url + "/health", headers={"Origin": origin})
        return response.headers.get("access-control-allow-origin")

    assert allowed("https://page.example") == "https://page.example"
    assert allowed("https://other.example") is None


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("page.localhost:1", 200),
        ("[::1]:8000", 200),
        ("192.168.1.7", 200),
        ("a-container:8000", 200),
        ("tiny.example", 200),
        ("TINY.example.:80", 200),
        ("evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("[a.b", 403),
    ],
)
def test_dns_rebinding_is_rejected(limited_server, host, status):
    response = httpx2.get(limited_server.url + "/health", headers={"Host": host})
    assert response.status_code == status
    if status == 403:
        assert response.json()["error"]["type"] == "permission_error"
        assert "--allowed-host" in response.json()["error"]["message"]


def test_any_host_name_is_allowed_with_an_api_key(server_with_key):
    headers = {"Host": "evil.example", "Authorization": f"Bearer {KEY}".encode()}
    body = {"prompt": "Paris"}
    assert server_with_key.post("/tokenize", body, headers=headers).status_code == 200


@pytest.fixture(scope="module")
def server_with_key():
    running = RunningServer("--api-key", KEY.encode())  # as bytes, independent of the locale
    yield running
    assert running.stop() == 0


def test_requests_without_the_api_key_are_rejected(server_with_key):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "a key with e"}):
        response = server_with_key.post("/v1/chat/completions", LONG, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"
    assert server_with_key.post("/tokenize", {"prompt": "a"}).status_code == 401
    assert server_with_key.get("/health").status_code == 200
    assert server_with_key.get("/v1/models").status_code == 200


def test_requests_with_the_api_key(server_with_key):
    for name, value in (
        ("Authorization", f"Bearer {KEY}"),
        ("Authorization", f"bearer {KEY}"),
        ("x-api-key", KEY),
    ):
        headers = {name: value.encode()}
        response = server_with_key.post("/tokenize", {"prompt": "Paris"}, headers=headers)
        assert response.status_code == 200
    # One valid key suffices, because a gateway may add a header with a key for another server.
    for x_api_key, bearer in ((KEY, "wrong"), ("wrong", KEY)):
        headers = {"x-api-key": x_api_key.encode(), "Authorization": f"Bearer {bearer}".encode()}
        assert (
            server_with_key.post("/tokenize", {"prompt": "a"}, headers=headers).status_code == 200
        )
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=server_with_key.url + "/v1", api_key="wrong", max_retries=0).post(
            "/chat/completions", body=LONG, cast_to=object
        )


def encoders():
    found = {"gzip": gzip.compress, "deflate": zlib.compress, "GZIP": gzip.compress}
    with contextlib.suppress(ImportError):
        from compression import zstd

        found["zstd"] = zstd.compress
    return found


@pytest.mark.parametrize("encoding", encoders())
def test_encoded_body(server, encoding):
    headers = {"content-type": "application/json", "content-encoding": encoding}
    body = json.dumps({"prompt": "Once upon a time " * 20}).encode()
    content = encoders()[encoding](body)
    cut = [content[:10], content[10:11], content[11:]]
    for given, status in (
        (content, 200),
        (iter(cut), 200),
        (content[:-3], 400),
        (content + b"x", 400),
        (iter([content, b"x"]), 400),
        (body, 400),
        (b"", 400),
    ):
        response = httpx2.post(server.url + "/tokenize", content=given, headers=headers)
        assert response.status_code == status, response.text
        name = encoding.lower()
        expected = "count" if status == 200 else f"The body is not valid {name}."
        assert expected in response.text


def test_unknown_content_encoding_is_415(server):
    headers = {"content-type": "application/json", "content-encoding": "br"}
    response = httpx2.post(server.url + "/v1/messages", content=b"abc", headers=headers)
    assert response.status_code == 415
    assert "Content-Encoding must be one of gzip, deflate" in response.json()["error"]["message"]
    assert response.headers["accept-encoding"].startswith("gzip, deflate")
    headers["content-encoding"] = "identity"
    response = httpx2.post(server.url + "/tokenize", content=b'{"prompt": "a"}', headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize("encoding", encoders())
def test_decoded_body_is_bounded(limited_server, encoding):
    """Neither memory nor time is spent on a body that decodes to more than the limit."""
    bomb = encoders()[encoding](b" " * 10**8)
    headers = {"content-type": "application/json", "content-encoding": encoding}
    for content in (bomb[:4000], iter([bomb[:2000], bomb[2000:4000]])):
        response = httpx2.post(limited_server.url + "/tokenize", content=content, headers=headers)
        assert response.status_code == 413
        assert "5000 bytes" in response.json()["error"]["message"]


def test_decoder_bounds_its_pieces():
    for encoding, encode in encoders().items():
        decoder, data = BodyDecoder(encoding), encode(b"ab" * 10**6)
        pieces = []
        for start in range(0, len(data), 700):
            pieces += decoder.decode(data[start : start + 700], start + 700 >= len(data))
        assert b"".join(pieces) == b"ab" * 10**6
        assert max(map(len, pieces)) == PIECE_BYTES
