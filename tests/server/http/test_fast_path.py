"""The short way: what takes it, what does not, and what becomes of errors on it."""

import asyncio
import json

import pytest
from fastapi import Request
from starlette.responses import Response

from tiny_llm.server.http.errors import INTERNAL_ERROR, bad_request
from tiny_llm.server.http.fast_path import FastPath
from tiny_llm.server.protocol.sampling import StrictModel


class Wish(StrictModel):
    """A body."""

    number: int


async def endpoint(body: Wish, request: Request) -> Response:
    if body.number < 0:
        raise bad_request("The number is below 0.")
    return Response(str(100 // body.number))


async def long_way(scope, receive, send):
    content = b""
    while True:
        message = await receive()
        content += message.get("body", b"")
        if not message.get("more_body"):
            break
    await Response(b"long: " + content)(scope, receive, send)


def ask(*parts, method="POST", path="/there", kind="application/json"):
    """The status and the body of an answer to a request whose body comes in parts."""
    messages = [
        {"type": "http.request", "body": part, "more_body": number + 1 < len(parts)}
        for number, part in enumerate(parts)
    ]
    sent = []

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    headers = [(b"content-type", kind.encode())]
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    scope |= {"query_string": b"", "server": ("x", 1), "scheme": "http"}
    asyncio.run(FastPath(long_way, {"/there": endpoint})(scope, receive, send))
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent)


def test_a_valid_body_takes_the_short_way():
    assert ask(b'{"number": 5}') == (200, b"20")
    assert ask(b'{"num', b'ber"', b": 4}", kind="application/json; charset=utf-8") == (200, b"25")


@pytest.mark.parametrize(
    "how",
    [
        {"path": "/elsewhere"},
        {"method": "GET"},
        {"kind": "text/plain"},
        {"kind": ""},
    ],
)
def test_other_requests_take_the_long_way(how):
    assert ask(b'{"number"', b": 5}", **how) == (200, b'long: {"number": 5}')


@pytest.mark.parametrize("content", [b"", b"{", b'{"number": "5"}', b'{"number": 5, "more": 1}'])
def test_what_is_not_valid_takes_the_long_way_and_is_still_whole(content):
    assert ask(content[:3], content[3:]) == (200, b"long: " + content)


def test_errors_have_their_form_and_the_inside_is_not_told(caplog):
    status, content = ask(b'{"number": -1}')
    assert (status, json.loads(content)["error"]["message"]) == (400, "The number is below 0.")
    status, content = ask(b'{"number": 0}')
    assert (status, json.loads(content)["error"]["message"]) == (500, INTERNAL_ERROR)
    assert "ZeroDivisionError" in caplog.text
