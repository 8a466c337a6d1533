"""Answers on their way out: streams of events, and plain ones. Both end when the client leaves."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .bridge import Generation
from .errors import INSIDE, ApiError, new_request_id, to_json
from .leaving import WhileConnected
from .seam import Piece

log = logging.getLogger("tiny_llm.server")

COMMENT = b": keep-alive\n\n"
HEAD_WAITS = 0.1  # seconds for the first token: one write for both costs half of two

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

    What the engine has added since the last time is sent in one write; each token is an event. The
    head and the events before the answer go out with the first token, if it comes soon.

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
        self._before: bytes | None = None  # events before the answer, once they are made
        self._has_head = False  # whether the head was sent, and those with it
        self._last_sent = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._filling: asyncio.Task[None] | None = None  # what ends a silence is being sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until they end, the client leaves, or reads too slowly."""
        try:
            with WhileConnected(receive, self._generation) as connection:
                await self._send_all(send)
        finally:
            self._end_filling()
        if connection.is_slow:
            log.warning("a client reads its stream too slowly and is dropped")

    async def _send_all(self, send: Send) -> None:
        self._look_after(HEAD_WAITS, send)
        try:
            last = await self._send_answer(send)
        except ApiError as error:
            self._begin()
            last = self._reply.fail(error)
        except Exception:
            log.exception("a stream failed")
            self._begin()
            last = self._reply.fail(ApiError(500, INSIDE))
        self._end_filling()
        await self._send(send, last, is_last=True)

    async def _send_answer(self, send: Send) -> bytes:
        """Sends the answer; returns its last events."""
        reply = self._reply
        async for pieces in self._generation.news():
            self._begin()
            if len(pieces) == 1:
                data = reply.take(*pieces[0])
            else:
                data = b"".join(reply.take(number, piece) for number, piece in pieces)
            if data:
                await self._send(send, data)
        return reply.end()

    def _begin(self) -> None:
        """Makes the first events, as late as can be: they may tell what was found in the cache."""
        if self._before is None:
            self._before = self._reply.begin()

    async def _send(self, send: Send, data: bytes, is_last: bool = False) -> None:
        self._last_sent = time.monotonic()
        if not self._has_head:
            self._has_head = True
            data = (self._before or b"") + data
            start = {"type": "http.response.start", "status": self.status_code}
            await send({**start, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": data, "more_body": not is_last})

    # ---------------------------------------------------------------- proxies close silent streams

    def _look_after(self, seconds: float, send: Send) -> None:
        """Looks later whether the stream was silent, and then sends something."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look, send)

    def _look(self, send: Send) -> None:
        silent = time.monotonic() - self._last_sent
        if not self._has_head:
            self._begin()
            self._fill(send, b"")
        elif silent >= self._keep_alive:
            self._fill(send, self._nothing)
        else:
            self._look_after(self._keep_alive - silent, send)
            return
        self._look_after(self._keep_alive, send)

    def _fill(self, send: Send, data: bytes) -> None:
        if self._filling is None or self._filling.done():
            self._filling = asyncio.ensure_future(self._send(send, data))

    def _end_filling(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._filling is not None:
            self._filling.cancel()


async def whole(receive: Receive, generation: Generation, answer: Awaitable[Response]) -> Response:
    """A plain answer, unless the client leaves before it is finished."""
    with WhileConnected(receive, generation):
        return await answer
    return Response(status_code=499)  # there is nobody to read it
