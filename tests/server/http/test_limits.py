"""Limits: queue, body size, JSON size, timeouts, origins, API key."""

import contextlib
import gzip
import json
import select
import zlib

import httpx2
import pytest

from tests.server.protocol.test_disconnect import LONG, connect
from tests.server.protocols import CHAT
from tests.server.running_server import RunningServer, eventually, read_all, request_bytes, served
from tiny_llm.server.http.middleware import PIECE_BYTES, BodyDecoder

KEY = "a key with é"
BODY = {"prompt": "Paris"}

limited_server = served(
    *("--max-num-seqs", "1", "--max-queue", "1", "--max-body-bytes", "5000"),
    *("--request-timeout", "2", "--cors-origin", "https://page.example"),
    *("--allowed-host", "tiny.example"),
    fault="slow",
)


@pytest.mark.slow
def test_full_queue_is_429_with_retry_after(limited_server):
    connections = [connect(limited_server, {**LONG, "stream": True}) for _ in range(2)]
    assert eventually(lambda: limited_server.metric("num_requests_waiting") == 1)
    rejected = limited_server.post(CHAT.path, LONG)
    assert rejected.status_code == 429
    assert rejected.headers["retry-after"] == "1"
    error = rejected.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    for connection in connections:
        connection.close()
    assert eventually(lambda: limited_server.is_empty)


def in_chunks(content, *ends):
    """The content as a chunked body."""
    return iter([content[a:b] for a, b in zip((0, *ends), (*ends, None), strict=True)])


@pytest.mark.parametrize("is_chunked", [False, True])
def test_large_body_is_413(server, limited_server, is_chunked):
    for running, num_bytes in ((limited_server, 5000), (server, 2**22)):
        content = b'{"x": "' + b"x" * num_bytes + b'"}'
        content = in_chunks(content, 4000) if is_chunked else content
        response = running.send(CHAT.path, content)
        assert response.status_code == 413
        assert response.json()["error"]["message"] == (
            f"The body exceeds the maximum of {num_bytes} bytes; send a smaller body, or raise the "
            "server's --max-body-bytes."
        )


def test_content_length_of_a_large_chunked_body(limited_server):
    chunk = b'{"prompt": "' + b"a" * 6000
    head = request_bytes("/tokenize", b"", headers="Transfer-Encoding: chunked\r\n")
    head = head.replace(b"Length: 0", b"Length: 5")
    with limited_server.connect(head + b"%x\r\n%b\r\n" % (len(chunk), chunk)) as connection:
        assert connection.recv(20).split()[1] in (b"413", b"400")


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize(
    ("reason", "content"),
    [
        ("has more than 131,072 JSON values", b'{"prompt": [' + b"1," * 200_000 + b"1]}"),
        ("has more than 16,384 JSON objects and lists", b'{"a": [' + b"{}," * 20_000 + b"{}]}"),
        ("is nested more than 100 levels deep", b'{"metadata": ' + b"[" * 100 + b"]" * 100 + b"}"),
    ],
    ids=["values", "objects", "levels"],
)
def test_too_many_values_and_levels_are_400(server, reason, content, is_chunked):
    response = server.send(CHAT.path, in_chunks(content, 70_000) if is_chunked else content)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"the body {reason}; ")


INCOMPLETE = request_bytes("/tokenize", b"{" + b" " * 49)[:-49]


@pytest.mark.slow
def test_incomplete_body_is_408():
    with RunningServer(fault="impatient") as server:
        response = read_all(server.connect(INCOMPLETE))
    assert response.startswith(b"HTTP/1.1 408 ")
    assert b"The body is incomplete: no data for 0.5 s; resend the request." in response


@pytest.mark.slow
def test_incomplete_body_while_draining_is_503():
    with RunningServer() as server:
        connection = server.connect(INCOMPLETE)
        assert server.get("/health").status_code == 200  # by now, the server has read the head
    response = read_all(connection)
    assert response.startswith(b"HTTP/1.1 503 ")
    assert b"The server is shutting down" in response
    assert "Traceback" not in "".join(server.lines)


@pytest.mark.slow
def test_connections_beyond_the_file_limit_are_503():
    def is_healthy():
        with contextlib.suppress(httpx2.TransportError):
            return server.get("/health").status_code == 200

    with RunningServer(max_files=64) as server:
        connections = [server.connect() for _ in range(100)]
        rejected, _, _ = select.select(connections, [], [], 60)
        response = rejected[0].recv(1000)
        assert response.startswith(b"HTTP/1.1 503 ")
        assert b"The server has reached its limit of 16 connections; retry later." in response
        for connection in connections:
            connection.close()
        assert eventually(is_healthy)
    log = "".join(server.lines)
    assert "Traceback" not in log
    assert log.count("out of file descriptors") <= 2


@pytest.mark.slow
def test_request_timeout_is_an_error(limited_server):
    response = limited_server.post(CHAT.path, LONG)
    assert response.status_code == 504
    assert response.json()["error"]["type"] == "timeout_error"
    response = limited_server.post(CHAT.path, {**LONG, "stream": True})
    assert response.status_code == 200  # the stream starts before the timeout
    *_, error, end, rest = response.text.split("\n\n")
    assert "timeout_error" in error
    assert (end, rest) == ("data: [DONE]", "")
    assert eventually(lambda: limited_server.is_empty)


def test_cross_origin_requests(limited_server):
    for origin, allowed in (("page", "https://page.example"), ("other", None)):
        headers = {"Origin": f"https://{origin}.example"}
        response = httpx2.get(limited_server.url + "/health", headers=headers)
        assert response.headers.get("access-control-allow-origin") == allowed


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((f"{host}:8000", 200) for host in ("127.0.0.1", "[::1]", "a-container", "TINY.example.")),
        *((host, 200) for host in ("localhost", "page.localhost:1", "192.168.1.7", "tiny.example")),
        *((host, 403) for host in ("evil.example:8000", "127.0.0.1.evil.example", "[a.b")),
    ],
)
def test_dns_rebinding_is_rejected(limited_server, host, status):
    response = httpx2.get(limited_server.url + "/health", headers={"Host": host})
    assert response.status_code == status
    if status == 403:
        assert response.json()["error"]["type"] == "permission_error"
        assert "--allowed-host" in response.json()["error"]["message"]


server_with_key = served("--api-key", KEY.encode())  # as bytes, independent of the locale


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"x-api-key": "a key with e"}, 401),
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"Authorization": f"bearer {KEY}"}, 200),
        ({"x-api-key": KEY}, 200),
        # One valid key suffices, because a gateway may add a header with a key for another server.
        ({"x-api-key": KEY, "Authorization": "Bearer wrong"}, 200),
        ({"x-api-key": "wrong", "Authorization": f"Bearer {KEY}"}, 200),
        ({"Host": "evil.example", "Authorization": f"Bearer {KEY}"}, 200),
    ],
)
def test_api_key(server_with_key, headers, status):
    headers = {name: value.encode() for name, value in headers.items()}
    for path in ("/tokenize", "/v1/completions"):
        response = server_with_key.post(path, {**BODY, "max_tokens": 1}, headers=headers)
        assert response.status_code == status
        if status == 401:
            assert response.json()["error"]["type"] == "authentication_error"
    assert server_with_key.get("/health").status_code == 200
    assert server_with_key.get("/v1/models").status_code == 200


def encoders():
    found = {"gzip": gzip.compress, "deflate": zlib.compress, "GZIP": gzip.compress}
    with contextlib.suppress(ImportError):
        from compression import zstd

        found["zstd"] = zstd.compress
    return found


@pytest.mark.parametrize("encoding", encoders())
def test_encoded_body(server, encoding):
    body = json.dumps({"prompt": "Once upon a time " * 20}).encode()
    content = encoders()[encoding](body)
    invalid = (content[:-3], content + b"x", iter([content, b"x"]), body, b"")
    cases = [(content, 200), (in_chunks(content, 10, 11), 200), *((each, 400) for each in invalid)]
    for given, status in cases:
        response = server.send("/tokenize", given, **{"content-encoding": encoding})
        assert response.status_code == status, response.text
        invalid_encoding = f"The body is not valid {encoding.lower()}."
        assert ("count" if status == 200 else invalid_encoding) in response.text


def test_unknown_content_encoding_is_415(server):
    response = server.send("/v1/messages", b"abc", **{"content-encoding": "br"})
    assert response.status_code == 415
    assert "Content-Encoding must be one of gzip, deflate" in response.json()["error"]["message"]
    assert response.headers["accept-encoding"].startswith("gzip, deflate")
    headers = {"content-encoding": "identity"}
    assert server.send("/tokenize", json.dumps(BODY).encode(), **headers).status_code == 200


@pytest.mark.parametrize("encoding", sorted(encoders().keys() - {"GZIP"}))
def test_decoded_body_is_bounded(limited_server, encoding):
    """Neither memory nor time is spent on a body that decodes to more than the limit."""
    bomb = encoders()[encoding](b" " * 2 * 10**7)[:4000]
    for content in (bomb, in_chunks(bomb, 2000)):
        response = limited_server.send("/tokenize", content, **{"content-encoding": encoding})
        assert response.status_code == 413
        assert "5000 bytes" in response.json()["error"]["message"]


@pytest.mark.parametrize("encoding", encoders())
def test_decoder_bounds_its_pieces(encoding):
    decoder, data = BodyDecoder(encoding), encoders()[encoding](b"ab" * 10**6)
    pieces = []
    for start in range(0, len(data), 700):
        pieces += decoder.decode(data[start : start + 700], start + 700 >= len(data))
    assert b"".join(pieces) == b"ab" * 10**6
    assert max(map(len, pieces)) == PIECE_BYTES
