"""Error events of requests that waited for their model."""

import asyncio
import json

import pytest

from tiny_llm.server.http.errors import ApiError
from tiny_llm.server.models.model_registry import ModelLease

ERROR = ApiError(400, "The prompt is too long.", "prompt", "too_long", details={"limit": 5})


def bare_event(path):
    return {**ERROR.body(path)["error"], "type": "error", "sequence_number": 0}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        *((path, ERROR.body(path)) for path in ("/v1/completions", "/v1/messages")),
        ("/v1/responses", bare_event("/v1/responses")),
    ],
)
def test_error_after_a_comment_keeps_its_fields(path, expected):
    sent = []

    async def send(message):
        sent.append(message)

    async def respond():
        lease = ModelLease(None, path, send)
        await lease._send_comment()
        await lease.send({"type": "http.response.start", "status": 400, "headers": []})
        body = json.dumps(ERROR.body(path)).encode()
        await lease.send({"type": "http.response.body", "body": body})

    asyncio.run(respond())
    event = sent[-1]["body"].partition(b"data: ")[2].partition(b"\n")[0]
    assert json.loads(event) == expected
