"""Gateway with scripted replicas, without an engine or Ray."""

import asyncio
import json

import pytest

pytest.importorskip("fastapi", reason="the server's libraries are not installed")

from tests.server.protocols import PATHS
from tiny_llm.server.replicas import gateway
from tiny_llm.server.replicas.gateway import Gateway, ReplicaLostError

STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]
PLAIN = [(b"content-type", b"application/json")]


def response_start(headers):
    return {"type": "http.response.start", "status": 200, "headers": headers}


def response_body(data, more=False):
    return {"type": "http.response.body", "body": data, "more_body": more}


class ScriptedReplicas:
    """Fake replicas that replay a script.

    Args:
        attempts: steps of each attempt: an ASGI message, an exception, or None to wait 60 s.
    """

    def __init__(self, *attempts):
        self.attempts, self.requests, self.closed = list(attempts), [], 0

    async def stream(self, request):
        self.requests.append(request)
        try:
            for step in self.attempts.pop(0):
                if isinstance(step, Exception):
                    raise step
                if step is None:
                    await asyncio.sleep(60)
                yield [step]
        finally:
            self.closed += 1


def call(replicas, path="/v1/chat/completions", disconnects=False):
    sent = []
    pending = [{"type": "http.request", "body": b'{"prompt": "Once"}', "more_body": False}]

    async def receive():
        if pending:
            return pending.pop()
        await asyncio.sleep(0.01 if disconnects else 60)
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
    scope["app"] = object()  # cannot be pickled, so it must not be sent to a replica
    asyncio.run(Gateway(replicas)(scope, receive, send))
    return sent


@pytest.fixture(autouse=True)
def no_retry_delay(monkeypatch):
    monkeypatch.setattr(gateway, "RETRY_DELAY", 0)


def test_response_is_forwarded_unchanged():
    response = [response_start(PLAIN), response_body(b"{}")]
    replicas = ScriptedReplicas(response)
    assert call(replicas) == response
    (request,) = replicas.requests
    assert (request.body, request.prompt) == (b'{"prompt": "Once"}', "Once")
    assert "app" not in request.scope
    assert replicas.closed == 1


@pytest.mark.parametrize(
    "lost", [[ReplicaLostError()], [response_start(STREAM), ReplicaLostError()]]
)
def test_request_without_a_response_is_retried_on_another_replica(lost):
    response = [response_start(STREAM), response_body(b"data: 1\n\n", True), response_body(b"")]
    replicas = ScriptedReplicas(lost, response)
    assert call(replicas) == response
    assert len(replicas.requests) == 2


@pytest.mark.parametrize("path", PATHS)
def test_interrupted_stream_ends_with_an_error_event(path):
    first = response_body(b"event: x\ndata: 1\n\nevent: x\ndata: 2\n\n", True)
    replicas = ScriptedReplicas([response_start(STREAM), first, ReplicaLostError()])
    start, passed, last = call(replicas, path)
    assert (start, passed) == (response_start(STREAM), first)
    assert len(replicas.requests) == 1
    assert not last["more_body"]
    assert last["body"].endswith(b"data: [DONE]\n\n") == path.endswith("completions")
    event = json.loads(last["body"].partition(b"data: ")[2].partition(b"\n")[0])
    assert gateway.REPLICA_LOST in json.dumps(event)
    if path == "/v1/responses":
        assert event["sequence_number"] == 2


def test_interrupted_response_is_truncated():
    steps = [response_start(PLAIN), response_body(b"{", True), ReplicaLostError()]
    replicas = ScriptedReplicas(steps)
    with pytest.raises(ReplicaLostError):
        call(replicas)


def test_no_replica_available():
    replicas = ScriptedReplicas(*[[ReplicaLostError()]] * gateway.MAX_ATTEMPTS)
    start, last = call(replicas)
    assert start["status"] == 503
    assert (b"retry-after", b"1") in start["headers"]
    assert json.loads(last["body"])["error"]["message"] == gateway.NO_REPLICA


def test_disconnect_cancels_the_request():
    replicas = ScriptedReplicas([response_start(STREAM), response_body(b"data: 1\n\n", True), None])
    assert len(call(replicas, disconnects=True)) == 2
    assert replicas.closed == 1
