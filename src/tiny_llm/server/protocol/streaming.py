"""Event streams and full responses, cancelled when the client disconnects.

ASGI reports a disconnect only through `receive`, so a task awaits `receive` during generation. At
the end, the request is always closed, which releases its engine resources.
"""

import asyncio
import logging
import time
from types import TracebackType
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...engine.scheduling.request import StreamOutput
from ..engine_client.request_stream import RequestStream
from ..http.errors import (
    ANTHROPIC_PATHS,
    INTERNAL_ERROR,
    ApiError,
    JsonResponse,
    current_record,
    request_id_headers,
    to_json,
)

log = logging.getLogger("tiny_llm.server")

KEEP_ALIVE_COMMENT = b": keep-alive\n\n"
HEADER_DELAY = 0.1  # maximum seconds that headers wait, to be sent with the first token
RESPONSES_PATH = "/v1/responses"
TEXT_PLACEHOLDER = "\0"  # placeholder text in an `EventTemplate`


class CancelOnDisconnect:
    """Context manager that cancels its block when the client disconnects.

    The cancellation does not propagate out of the block. On exit, `stream` is closed.
    """

    def __init__(self, receive: Receive, stream: RequestStream):
        self._receive = receive
        self._stream = stream
        self._is_done = False  # whether the block has exited or been cancelled
        self._was_cancelled = False

    def __enter__(self) -> "CancelOnDisconnect":
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._disconnect_task = asyncio.create_task(wait_for_disconnect(self._receive))
        self._disconnect_task.add_done_callback(lambda _: self._cancel_task())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        """Closes the request; suppresses a cancellation by `_cancel_task`."""
        # [task 5.1.4 leave]
        self._is_done = True
        self._disconnect_task.cancel()
        self._stream.close()
        # A concurrent cancellation by another task must still propagate.
        is_ours = self._was_cancelled and kind is asyncio.CancelledError
        return is_ours and self._task.uncancel() == 0
        # [/task 5.1.4 leave]

    def _cancel_task(self) -> None:
        """Cancels the block, at most once and only while it runs."""
        # [task 5.1.4 cancel]
        if not self._is_done:
            self._is_done = self._was_cancelled = True
            self._task.cancel()
        # [/task 5.1.4 cancel]


async def wait_for_disconnect(receive: Receive) -> None:
    """Waits until the client closes the connection."""
    # [task 5.1.4 wait]
    while (await receive())["type"] != "http.disconnect":
        pass
    # [/task 5.1.4 wait]


class OutputSerializer(Protocol):
    """Serializes outputs in a protocol's format, as events or a full response."""

    def add(self, output: StreamOutput) -> Any:
        """Adds an output to the full response."""

    def full_response(self) -> dict[str, Any]:
        """Returns the full response, after all outputs have been added."""

    def start_events(self) -> bytes:
        """Events before the first output."""

    def delta_events(self, output: StreamOutput) -> bytes:
        """Events for new output of a completion."""

    def end_events(self) -> bytes:
        """Events after the last output."""

    def error_events(self, error: ApiError) -> bytes:
        """Events that end a failed stream."""

    def keep_alive_event(self) -> bytes:
        """Event without effect, which resets timeouts; SSE parsers hide a comment."""


def sse_event(data: Any, name: str | None = None) -> bytes:
    """Encodes a server-sent event.

    Args:
        data: the payload, sent as JSON.
        name: the event's type; None for the default, "message".
    """
    # [task 5.1.1 event]
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + to_json(data) + b"\n\n"
    # [/task 5.1.1 event]


def error_event(path: str, body: dict[str, Any], num_events: int = 0) -> bytes:
    """Events that end a failed stream, in the protocol of `path`.

    Args:
        body: the error's `ApiError.body` for this path.
        num_events: number of events sent so far: the sequence number, in the Responses API.
    """
    if path == RESPONSES_PATH:
        error = body["error"]
        event = {**error, "type": "error", "code": error["code"] or "server_error"}
        return sse_event({**event, "sequence_number": num_events}, "error")
    if path.startswith(ANTHROPIC_PATHS):
        return sse_event(body, "error")
    return sse_event(body) + b"data: [DONE]\n\n"


def stream_headers() -> dict[str, str]:
    return {
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-cache",
        "X-Accel-Buffering": "no",
        **request_id_headers(),
    }


class EventTemplate:
    """An event that is encoded once; only its text varies.

    Args:
        with_text: the event with `TEXT_PLACEHOLDER` as its text.
    """

    def __init__(self, with_text: bytes):
        # [task 5.1.1 template]
        self._prefix, self._suffix = with_text.split(to_json(TEXT_PLACEHOLDER))
        # [/task 5.1.1 template]

    def __call__(self, text: str) -> bytes:
        """Encodes the event with `text`."""
        # [task 5.1.1 fill]
        return self._prefix + to_json(text) + self._suffix
        # [/task 5.1.1 fill]


class EventSourceResponse(Response):
    """A stream of server-sent events.

    Each output is encoded separately; the events of a batch of outputs are sent in one write.
    Headers and start events are sent with the first token if it is ready within `HEADER_DELAY`.

    Args:
        keep_alive: seconds of silence before a keep-alive event is sent.
    """

    def __init__(self, serializer: OutputSerializer, stream: RequestStream, keep_alive: float):
        super().__init__(headers=stream_headers())
        del self.headers["content-length"]
        self._serializer = serializer
        self._stream = stream
        self._keep_alive = keep_alive
        self._start_data: bytes | None = None  # start events; None until created
        self._headers_sent = False  # whether headers and start events have been sent
        self._last_sent = 0.0
        self._keep_alive_task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with CancelOnDisconnect(receive, self._stream):
                await self._send_all(send)
        finally:
            self._cancel_keep_alive()

    async def _send_all(self, send: Send) -> None:
        """Sends the whole stream; a failure ends it with error events."""
        self._keep_alive_task = asyncio.ensure_future(self._send_keep_alives(send))
        # [task 5.1.3 errors]
        try:
            last = await self._send_outputs(send)
        except ApiError as error:
            last = self._error_events(error)
        except Exception:
            log.exception("stream failed")
            last = self._error_events(ApiError(500, INTERNAL_ERROR))
        self._cancel_keep_alive()
        await self._send(send, last, is_last=True)
        # [/task 5.1.3 errors]

    async def _send_outputs(self, send: Send) -> bytes:
        """Sends each batch's events in one write; returns the end events."""
        # [task 5.1.2 outputs]
        async for outputs in self._stream.batches():
            self._make_start_events()
            data = b"".join(map(self._serializer.delta_events, outputs))
            if data:
                await self._send(send, data)
        return self._serializer.end_events()
        # [/task 5.1.2 outputs]

    def _error_events(self, error: ApiError) -> bytes:
        current_record().error = error.message
        self._make_start_events()
        return self._serializer.error_events(error)

    def _make_start_events(self) -> None:
        """Creates the start events, once: after admission, because they may report cache hits."""
        if self._start_data is None:
            self._start_data = self._serializer.start_events()

    async def _send(self, send: Send, data: bytes, is_last: bool = False) -> None:
        """Sends encoded events; the first call also sends headers and start events."""
        self._last_sent = time.monotonic()
        # [task 5.1.2 send]
        if not self._headers_sent:
            self._headers_sent = True  # before `await`, when a keep-alive may be sent
            data = (self._start_data or b"") + data
            start = {"type": "http.response.start", "status": self.status_code}
            await send({**start, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": data, "more_body": not is_last})
        # [/task 5.1.2 send]

    async def _send_keep_alives(self, send: Send) -> None:
        """Sends the headers after `HEADER_DELAY`, then an event after each silence."""
        await asyncio.sleep(HEADER_DELAY)
        if not self._headers_sent:
            self._make_start_events()
            await self._send(send, b"")
        while True:
            silent = time.monotonic() - self._last_sent
            if silent >= self._keep_alive:
                await self._send(send, self._serializer.keep_alive_event())
                silent = 0.0
            await asyncio.sleep(self._keep_alive - silent)

    def _cancel_keep_alive(self) -> None:
        if self._keep_alive_task is not None:
            self._keep_alive_task.cancel()


async def respond(
    request: Request,
    stream: RequestStream,
    serializer: OutputSerializer,
    is_stream: bool,
    keep_alive: float,
) -> Response:
    """Response with a request's outputs: an event stream, or JSON once they are complete."""
    if is_stream:
        return EventSourceResponse(serializer, stream, keep_alive)
    with CancelOnDisconnect(request.receive, stream):
        async for outputs in stream.batches():
            for output in outputs:
                serializer.add(output)
        return JsonResponse(serializer.full_response())
    return Response(status_code=499)  # the client has disconnected
