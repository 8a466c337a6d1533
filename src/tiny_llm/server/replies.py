"""Answers on their way out: streams of events, and plain ones. Both end when the client leaves.

That a client has left is seen only through ASGI's `receive`, so both kinds watch it while the
engine computes. Whatever happens, the generation is closed, and its place in the engine free.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .bridge import Generation
from .errors import ApiError, new_request_id, to_json
from .seam import Piece

log = logging.getLogger("tiny_llm.server")

INSIDE = "The server failed while it answered; its log says why."
COMMENT = b": keep-alive\n\n"

# Events of the engine's view: bytes, each ready to be sent.
Events = AsyncIterator[bytes]
MARK = "\0"  # stands for the text in a `TextEvent`


class Reply(Protocol):
    """An answer in the form of its protocol. Each method returns whole events, as bytes."""

    def begin(self) -> bytes:
        """What comes before the answer."""

    def take(self, number: int, piece: Piece) -> bytes:
        """What a step has added to the answer of prompt `number`."""

    def end(self) -> bytes:
        """What comes after it."""

    def fail(self, error: ApiError) -> bytes:
        """The end of a stream that failed."""


def event(data: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + to_json(data) + b"\n\n"


class TextEvent:
    """An event that is always the same but for one text; all else is encoded once.

    Args:
        with_text: the event with `MARK` in the place of the text.
    """

    def __init__(self, with_text: bytes):
        self._before, self._after = with_text.split(to_json(MARK))

    def __call__(self, text: str) -> bytes:
        """The event with that text."""
        return self._before + to_json(text) + self._after


class EventStream(Response):
    """A stream of server-sent events.

    What the engine has added since the last time is sent in one write; each token is an event.

    Args:
        reply: makes the events.
        generation: the answers; it is closed at the end.
        keep_alive: seconds of silence after which something is sent that says nothing.
        nothing: what that is; clients do not see a comment, and may give up on a silent stream.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        reply: Reply,
        generation: Generation,
        keep_alive: float,
        nothing: bytes = COMMENT,
    ):
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers={**headers, **new_request_id()})
        del self.headers["content-length"]
        self._reply = reply
        self._generation = generation
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
            last = await self._send_answer(send)
        except ApiError as error:
            last = self._reply.fail(error)
        except Exception:
            log.exception("a stream failed")
            last = self._reply.fail(ApiError(500, INSIDE))
        finally:
            await _cancel(keeping)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_answer(self, send: Send) -> bytes:
        """Sends the answer; returns its last events."""
        reply = self._reply
        if first := reply.begin():
            await self._send(send, first)
        async for pieces in self._generation.news():
            if len(pieces) == 1:
                data = reply.take(*pieces[0])
            else:
                data = b"".join(reply.take(number, piece) for number, piece in pieces)
            if data:
                await self._send(send, data)
        return reply.end()

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
