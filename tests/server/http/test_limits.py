"""Limits: queue, body size, timeout, API key."""

import socket

import httpx2
import openai
import pytest

from tests.server.protocol.test_disconnect import LONG, connect
from tests.server.running_server import RunningServer, eventually

KEY = "a key with é"


@pytest.fixture(scope="module")
def limited():
    """A server with low limits."""
    running = RunningServer(
        *("--max-num-seqs", "1", "--max-queue", "1", "--max-body-bytes", "5000"),
        *("--request-timeout", "2", "--cors-origin", "https://page.example"),
        *("--allowed-host", "tiny.example"),
        fault="slow",
    )
    yield running
    assert running.stop() == 0


def test_full_queue_is_429_with_retry_after(limited):
    connections = [connect(limited, {**LONG, "stream": True}) for _ in range(2)]
    assert eventually(lambda: limited.metric("num_requests_waiting") == 1)
    refused = limited.post("/v1/chat/completions", LONG)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    for connection in connections:
        connection.close()
    assert eventually(lambda: limited.is_empty)


@pytest.mark.parametrize("declared", [True, False])
def test_large_body_is_413(limited, declared):
    content = b'{"x": "' + b"x" * 10_000 + b'"}'
    headers = {"content-type": "application/json"}
    response = httpx2.post(
        limited.url + "/v1/chat/completions",
        content=content if declared else iter([content[:4000], content[4000:]]),
        headers=headers,
    )
    assert response.status_code == 413
    assert "5000 bytes" in response.json()["error"]["message"]


def test_large_chunked_body_is_413(limited):
    host, port = limited.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunk = b'{"prompt": "' + b"a" * 6000
        connection.sendall(head.encode() + b"%x\r\n" % len(chunk) + chunk + b"\r\n")
        assert connection.recv(20).split()[1] in (b"413", b"400")


def test_request_timeout_is_an_error(limited):
    response = limited.post("/v1/chat/completions", LONG)
    assert response.status_code == 504
    assert response.json()["error"]["type"] == "timeout_error"
    response = limited.post("/v1/chat/completions", {**LONG, "stream": True})
    assert response.status_code == 200  # started before the timeout
    *_, error, end, rest = response.text.split("\n\n")
    assert "timeout_error" in error
    assert (end, rest) == ("data: [DONE]", "")
    assert eventually(lambda: limited.is_empty)


def test_cross_origin_requests(limited):
    def allowed(origin):
        response = httpx2.get(limited.url + "/health", headers={"Origin": origin})
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
def test_dns_rebinding_is_rejected(limited, host, status):
    response = httpx2.get(limited.url + "/health", headers={"Host": host})
    assert response.status_code == status
    if status == 403:
        assert response.json()["error"]["type"] == "permission_error"
        assert "--allowed-host" in response.json()["error"]["message"]


def test_any_host_name_is_allowed_with_an_api_key(guarded):
    headers = {"Host": "evil.example", "Authorization": f"Bearer {KEY}".encode()}
    body = {"prompt": "Paris"}
    assert guarded.post("/tokenize", body, headers=headers).status_code == 200


@pytest.fixture(scope="module")
def guarded():
    """A server with an API key."""
    running = RunningServer("--api-key", KEY.encode())  # whatever the locale
    yield running
    assert running.stop() == 0


def test_requests_without_the_api_key_are_rejected(guarded):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "a key with e"}):
        response = guarded.post("/v1/chat/completions", LONG, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"
    assert guarded.post("/tokenize", {"prompt": "a"}).status_code == 401
    assert guarded.get("/health").status_code == 200
    assert guarded.get("/v1/models").status_code == 200


def test_requests_with_the_api_key(guarded):
    for name, value in (("Authorization", f"Bearer {KEY}"), ("x-api-key", KEY)):
        headers = {name: value.encode()}
        response = guarded.post("/tokenize", {"prompt": "Paris"}, headers=headers)
        assert response.status_code == 200
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=guarded.url + "/v1", api_key="wrong", max_retries=0).post(
            "/chat/completions", body=LONG, cast_to=object
        )
