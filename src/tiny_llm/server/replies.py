"""Answers on their way out: streams of events, and plain ones. Both end when the client leaves.

That a client has left is seen only through ASGI's `receive`, so both kinds watch it while the
engine computes. Whatever happens, the generation is closed, and its place in the engine free.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .bridge import Generation
from .errors import ApiError, to_json

log = logging.getLogger("tiny_llm.server")

INSIDE = "The server failed while it answered; its log says why."
COMMENT = b": keep-alive\n\n"

# Makes the events of a protocol: bytes, each ready to be sent.
Events = AsyncIterator[bytes]


def event(data: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + to_json(data) + b"\n\n"


class EventStream(Response):
    """A stream of server-sent events.

    Args:
        events: makes them; may raise `ApiError` after the stream began.
        generation: is closed at the end.
        error_event: the protocol's own event for an error, which ends the stream.
        keep_alive: seconds of silence after which something is sent that says nothing.
        nothing: what that is; clients do not see a comment, and may give up on a silent stream.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: Events,
        generation: Generation,
        error_event: Callable[[ApiError], bytes],
        keep_alive: float,
        nothing: bytes = COMMENT,
    ):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._generation = generation
        self._error_event = error_event
        self._keep_alive = keep_alive
        self._nothing = nothing
        self._last_sent = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until they end, the client leaves, or reads too slowly."""
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(until_left(receive))
        dropping = asyncio.create_task(self._generation.dropped.wait())
        try:
            await asyncio.wait((sending, leaving, dropping), return_when="FIRST_COMPLETED")
            if dropping.done() and not sending.done():
                log.warning("a client reads its stream too slowly and is dropped")
        finally:
            self._generation.close()
            await _cancel(sending, leaving, dropping)
        if sending.done() and not sending.cancelled():
            sending.result()

    async def _send_all(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        keeping = asyncio.create_task(self._keep_open(send))
        try:
            async for data in self._events:
                await self._send(send, data)
        except ApiError as error:
            await self._send(send, self._error_event(error))
        except Exception:
            log.exception("a stream failed")
            await self._send(send, self._error_event(ApiError(500, INSIDE)))
        finally:
            await _cancel(keeping)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        self._last_sent = time.monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _keep_open(self, send: Send) -> None:
        """Sends something where no event came for a while: proxies close silent streams."""
        while True:
            silent = time.monotonic() - self._last_sent
            if silent >= self._keep_alive:
                await self._send(send, self._nothing)
            else:
                await asyncio.sleep(self._keep_alive - silent)


async def whole(receive: Receive, generation: Generation, answer: Awaitable[Response]) -> Response:
    """A plain answer, unless the client leaves before it is finished."""
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.create_task(until_left(receive))
    try:
        await asyncio.wait((answering, leaving), return_when="FIRST_COMPLETED")
        if answering.done():
            return answering.result()
        return Response(status_code=499)  # there is nobody to read it
    finally:
        generation.close()
        await _cancel(answering, leaving)


async def until_left(receive: Receive) -> None:
    """Waits until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
