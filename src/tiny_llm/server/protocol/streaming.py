"""Answers on their way out: streams of events, and plain ones. Both end when the client leaves."""

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
HEADER_DELAY = 0.1  # seconds for the first token: one write for both costs half of two

# Events of the engine's view: bytes, each ready to be sent.
Events = AsyncIterator[bytes]
TEXT_PLACEHOLDER = "\0"  # stands for the text in a `EventTemplate`


class OutputSerializer(Protocol):
    """An answer in the form of its protocol. Each method returns whole events, as bytes."""

    def start_events(self) -> bytes:
        """What comes before the answer."""

    def delta_events(self, output: StreamOutput) -> bytes:
        """Events for one step's additions to a completion."""

    def end_events(self) -> bytes:
        """What comes after it."""

    def error_events(self, error: ApiError) -> bytes:
        """The end of a stream that failed."""


def sse_event(data: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + to_json(data) + b"\n\n"


def error_event(path: str, error: ApiError) -> bytes:
    """The end of a failed stream, in the protocol of `path` (not for responses)."""
    if path.startswith(ANTHROPIC_PATHS):
        return sse_event(error.body(path), "error")
    return sse_event(error.body(path)) + b"data: [DONE]\n\n"


class EventTemplate:
    """An event that is always the same but for one text; all else is encoded once.

    Args:
        with_text: the event with `TEXT_PLACEHOLDER` in the place of the text.
    """

    def __init__(self, with_text: bytes):
        self._start_data, self._after = with_text.split(to_json(TEXT_PLACEHOLDER))

    def __call__(self, text: str) -> bytes:
        """The event with that text."""
        return self._start_data + to_json(text) + self._after


class EventSourceResponse(Response):
    """A stream of server-sent events.

    What the engine has added since the last time is sent in one write; each token is an event. The
    head and the events before the answer go out with the first token, if it comes soon.

    Args:
        serializer: makes the events.
        handle: the answers; it is closed at the end.
        keep_alive: seconds of silence after which something is sent that says nothing.
        keep_alive_event: what that is; clients do not see a comment, and may give up on a silent
            stream.
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
        self._start_data: bytes | None = None  # events before the answer, once they are made
        self._headers_sent = False  # whether the head was sent, and those with it
        self._last_sent = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._keep_alive_task: asyncio.Task[None] | None = None  # what ends a silence is being sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until they end, the client leaves, or reads too slowly."""
        try:
            with CancelOnDisconnect(receive, self._handle) as connection:
                await self._send_all(send)
        finally:
            self._cancel_keep_alive()
        if connection.is_slow:
            log.warning("a client reads its stream too slowly and is dropped")

    async def _send_all(self, send: Send) -> None:
        self._schedule_keep_alive(HEADER_DELAY, send)
        try:
            last = await self._send_outputs(send)
        except ApiError as error:
            self._make_start_events()
            last = self._serializer.error_events(error)
        except Exception:
            log.exception("a stream failed")
            self._make_start_events()
            last = self._serializer.error_events(ApiError(500, INTERNAL_ERROR))
        self._cancel_keep_alive()
        await self._send(send, last, is_last=True)

    async def _send_outputs(self, send: Send) -> bytes:
        """Sends the answer; returns its last events."""
        serializer = self._serializer
        async for outputs in self._handle.stream_outputs():
            self._make_start_events()
            data = b"".join(map(serializer.delta_events, outputs))
            if data:
                await self._send(send, data)
        return serializer.end_events()

    def _make_start_events(self) -> None:
        """Makes the first events, as late as can be: they may tell what was found in the cache."""
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

    # ---------------------------------------------------------------- proxies close silent streams

    def _schedule_keep_alive(self, seconds: float, send: Send) -> None:
        """Looks later whether the stream was silent, and then sends something."""
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
    receive: Receive, handle: RequestHandle, answer: Awaitable[Response]
) -> Response:
    """A plain answer, unless the client leaves before it is finished."""
    with CancelOnDisconnect(receive, handle):
        return await answer
    return Response(status_code=499)  # there is nobody to read it
