"""Responses: server-sent event streams and full JSON responses."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...engine.scheduling.outputs import StreamOutput
from ..engine_client.client import RequestHandle
from ..http.errors import ANTHROPIC_PATHS, INTERNAL_ERROR, ApiError, request_id_headers, to_json
from .disconnect import CancelOnDisconnect

log = logging.getLogger("tiny_llm.server")

KEEP_ALIVE_COMMENT = b": keep-alive\n\n"
HEADER_DELAY = 0.1  # maximum wait for the first token, to send it in one write with the headers

# Encoded events of the engine view.
Events = AsyncIterator[bytes]
TEXT_PLACEHOLDER = "\0"  # placeholder text of an `EventTemplate`


class OutputSerializer(Protocol):
    """Serializes a request's outputs in a protocol's format. Methods return encoded events."""

    def start_events(self) -> bytes:
        """Events before the first output."""

    def delta_events(self, output: StreamOutput) -> bytes:
        """Events for one step's additions to a completion."""

    def end_events(self) -> bytes:
        """Events after the last output."""

    def error_events(self, error: ApiError) -> bytes:
        """Events that end a failed stream."""


def sse_event(data: Any, name: str | None = None) -> bytes:
    """Encodes a server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + to_json(data) + b"\n\n"


def error_event(path: str, error: ApiError) -> bytes:
    """Events that end a failed stream, in the protocol of `path` (except Responses)."""
    if path.startswith(ANTHROPIC_PATHS):
        return sse_event(error.body(path), "error")
    return sse_event(error.body(path)) + b"data: [DONE]\n\n"


class EventTemplate:
    """A pre-encoded event with one variable text.

    Args:
        with_text: the event with `TEXT_PLACEHOLDER` as its text.
    """

    def __init__(self, with_text: bytes):
        self._prefix, self._suffix = with_text.split(to_json(TEXT_PLACEHOLDER))

    def __call__(self, text: str) -> bytes:
        """Encodes the event with `text`."""
        return self._prefix + to_json(text) + self._suffix


class EventSourceResponse(Response):
    """A stream of server-sent events.

    Each token is an event; the events of one batch of outputs are sent in one write. Headers and
    start events are sent with the first token if it is ready within `HEADER_DELAY`.

    Args:
        serializer: creates the events.
        handle: the request; closed at the end.
        keep_alive: seconds of silence before a keep-alive is sent.
        keep_alive_event: the keep-alive event. SSE parsers hide comments, so protocols with a ping
            event send pings, which reset client timeouts.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        serializer: OutputSerializer,
        handle: RequestHandle,
        keep_alive: float,
        keep_alive_event: bytes = KEEP_ALIVE_COMMENT,
    ):
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers={**headers, **request_id_headers()})
        del self.headers["content-length"]
        self._serializer = serializer
        self._handle = handle
        self._keep_alive = keep_alive
        self._keep_alive_event = keep_alive_event
        self._start_data: bytes | None = None  # start events; None until created
        self._headers_sent = False  # the start events included
        self._last_sent = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._keep_alive_task: asyncio.Task[None] | None = None  # sends a keep-alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends events until the end, a disconnect, or a slow-reader timeout."""
        try:
            with CancelOnDisconnect(receive, self._handle) as connection:
                await self._send_all(send)
        finally:
            self._cancel_keep_alive()
        if connection.is_slow:
            log.warning("dropped a client that reads its stream too slowly")

    async def _send_all(self, send: Send) -> None:
        self._schedule_keep_alive(HEADER_DELAY, send)
        try:
            last = await self._send_outputs(send)
        except ApiError as error:
            self._make_start_events()
            last = self._serializer.error_events(error)
        except Exception:
            log.exception("stream failed")
            self._make_start_events()
            last = self._serializer.error_events(ApiError(500, INTERNAL_ERROR))
        self._cancel_keep_alive()
        await self._send(send, last, is_last=True)

    async def _send_outputs(self, send: Send) -> bytes:
        """Sends the outputs; returns the end events."""
        serializer = self._serializer
        async for outputs in self._handle.stream_outputs():
            self._make_start_events()
            data = b"".join(map(serializer.delta_events, outputs))
            if data:
                await self._send(send, data)
        return serializer.end_events()

    def _make_start_events(self) -> None:
        """Creates the start events, as late as possible: they may contain cache hits."""
        if self._start_data is None:
            self._start_data = self._serializer.start_events()

    async def _send(self, send: Send, data: bytes, is_last: bool = False) -> None:
        self._last_sent = time.monotonic()
        if not self._headers_sent:
            self._headers_sent = True
            data = (self._start_data or b"") + data
            start = {"type": "http.response.start", "status": self.status_code}
            await send({**start, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": data, "more_body": not is_last})

    # ---------------------------------------------------------------- keep-alive against timeouts

    def _schedule_keep_alive(self, seconds: float, send: Send) -> None:
        """Sets the timer of the next silence check."""
        self._timer = asyncio.get_running_loop().call_later(
            seconds, self._on_keep_alive_timer, send
        )

    def _on_keep_alive_timer(self, send: Send) -> None:
        silent = time.monotonic() - self._last_sent
        if not self._headers_sent:
            self._make_start_events()
            self._send_keep_alive(send, b"")
        elif silent >= self._keep_alive:
            self._send_keep_alive(send, self._keep_alive_event)
        else:
            self._schedule_keep_alive(self._keep_alive - silent, send)
            return
        self._schedule_keep_alive(self._keep_alive, send)

    def _send_keep_alive(self, send: Send, data: bytes) -> None:
        if self._keep_alive_task is None or self._keep_alive_task.done():
            self._keep_alive_task = asyncio.ensure_future(self._send(send, data))

    def _cancel_keep_alive(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._keep_alive_task is not None:
            self._keep_alive_task.cancel()


async def full_response(
    receive: Receive, handle: RequestHandle, response: Awaitable[Response]
) -> Response:
    """Awaits a full response; cancelled by a disconnect."""
    with CancelOnDisconnect(receive, handle):
        return await response
    return Response(status_code=499)  # the client has disconnected
