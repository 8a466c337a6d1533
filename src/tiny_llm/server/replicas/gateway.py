"""Passes requests on to replicas: what happens when one is lost, or the client leaves.

Nothing is sent to the client before the replica has computed the first part of the body. Until then
a request whose replica is lost goes to another one, and the client does not notice. After that, its
stream ends with an error event of its protocol.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Message, Receive, Scope, Send

from ..http.errors import ApiError
from ..openai import responses
from ..protocol.disconnect import wait_for_disconnect
from ..protocol.streaming import error_event, sse_event
from .routing import routing_key

REPLICA_LOST = "The replica that computed this answer was lost; ask again."
NO_REPLICA = "No replica could answer; try again in a moment."
MAX_ATTEMPTS = 3  # replicas that a request may lose
RETRY_DELAY = (
    0.5  # seconds before the next attempt: a router needs a moment to see that one is gone
)


@dataclass(frozen=True)
class ReplicaRequest:
    """A request on its way to a replica: plain data, which crosses processes.

    Attributes:
        scope: ASGI's, without what belongs to the gateway's process.
        body: all of it.
        prompt: the text by which it is routed; may be empty.
    """

    scope: Scope
    body: bytes
    prompt: str


class ReplicaLostError(Exception):
    """The process that computed an answer is gone, or could not be reached."""


class ReplicaPool(Protocol):
    """What chooses a replica and asks it."""

    def stream(self, request: ReplicaRequest) -> AsyncGenerator[list[Message]]:
        """The ASGI messages of an answer; closing the generator cancels the request.

        Raises:
            ReplicaLostError: before its first messages, or after.
        """


class Gateway:
    """An ASGI application whose answers replicas compute."""

    def __init__(self, replicas: ReplicaPool):
        self._replicas = replicas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        body = await _read_body(receive)
        if body is None:
            return  # the client left
        request = ReplicaRequest(_picklable_scope(scope), body, routing_key(body))
        passing = asyncio.create_task(self._forward(request, send))
        leaving = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await asyncio.wait((passing, leaving), return_when="FIRST_COMPLETED")
        finally:
            passing.cancel()
            leaving.cancel()
            await asyncio.gather(passing, leaving, return_exceptions=True)
        if not passing.cancelled():
            passing.result()

    async def _forward(self, request: ReplicaRequest, send: Send) -> None:
        path = request.scope["path"]
        for attempt in range(MAX_ATTEMPTS):
            answer = _ForwardedResponse(path, send)
            asked = self._replicas.stream(request)
            try:
                async for news in asked:
                    for message in news:
                        await answer.take(message)
                return
            except ReplicaLostError:
                if answer.has_begun:
                    await answer.fail(ApiError(503, REPLICA_LOST))
                    return
            finally:
                await asked.aclose()
            if attempt < MAX_ATTEMPTS - 1:
                await asyncio.sleep(RETRY_DELAY)
        error = ApiError(503, NO_REPLICA, headers={"Retry-After": "1"}).response(path)
        await error(request.scope, _empty_receive, send)


class _ForwardedResponse:
    """An answer on its way to the client, whose head waits for the first part of the body."""

    def __init__(self, path: str, send: Send):
        self.has_begun = False
        self._path = path
        self._send = send
        self._head: Message | None = None
        self._num_events = 0

    async def take(self, message: Message) -> None:
        """Passes one ASGI message on."""
        if message["type"] == "http.response.start":
            self._head = message
            return
        if not self.has_begun:
            assert self._head is not None, "a body without a head"
            self.has_begun = True
            await self._send(self._head)
        self._num_events += message.get("body", b"").count(b"\ndata: ")
        await self._send(message)

    async def fail(self, error: ApiError) -> None:
        """Ends a stream with its protocol's error event.

        Raises:
            ReplicaLostError: this is no stream; the server that called closes the connection.
        """
        assert self._head is not None
        if dict(self._head["headers"]).get(b"content-type", b"").startswith(b"text/event-stream"):
            data = stream_error(self._path, error, self._num_events)
            await self._send({"type": "http.response.body", "body": data, "more_body": False})
            return
        raise ReplicaLostError(error.message)


def stream_error(path: str, error: ApiError, num_events: int) -> bytes:
    """The event that ends a failed stream.

    Args:
        path: of the request; decides the protocol.
        error: what to say.
        num_events: that the stream had before, by which Responses numbers its events.
    """
    if path == responses.PATH:
        told = {"type": "error", "code": "server_error", "message": error.message, "param": None}
        return sse_event({**told, "sequence_number": num_events}, "error")
    return error_event(path, error)


def _picklable_scope(scope: Scope) -> Scope:
    """What of a scope another process understands."""
    names = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string")
    found = {name: scope[name] for name in (*names, "root_path", "client") if name in scope}
    headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    return {**found, "asgi": {"version": "3.0"}, "server": None, "headers": headers}


async def _read_body(receive: Receive) -> bytes | None:
    """All of a body; None if the client leaves before its end."""
    parts = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)
    return None


async def _empty_receive() -> Message:
    """A `receive` for answers that read no body."""
    return {"type": "http.disconnect"}


async def _lifespan(receive: Receive, send: Send) -> None:
    """ASGI's lifespan: there is nothing to start and nothing to stop."""
    while (kind := (await receive())["type"]) == "lifespan.startup":
        await send({"type": f"{kind}.complete"})
    await send({"type": f"{kind}.complete"})
