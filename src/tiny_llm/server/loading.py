"""Waiting for a model to load, with keep-alive comments in streams."""

import asyncio
import json
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .engine_client.models import ModelEngine
from .http.errors import ApiError
from .protocol.streaming import KEEP_ALIVE_COMMENT, error_event, stream_headers, wait_for_disconnect

LEASE = "tiny_llm.model_lease"  # key of the request's lease in the ASGI scope


class ModelLease:
    """A request's lease on a model: keeps it loaded until the response ends.

    If a streaming request waits longer than the keep-alive interval, a keep-alive comment starts
    its response. A later error response becomes an error event in the protocol of `path`.
    """

    def __init__(self, path: str, send: Send):
        self._path = path
        self._send = send
        self._engine: ModelEngine | None = None
        self._acquired: asyncio.Future[None] | None = None
        self._is_started = False  # whether a keep-alive comment has started the response
        self._is_error = False  # whether the response after the comments is an error

    async def wait(
        self,
        engine: ModelEngine,
        request_load: Callable[[ModelEngine], None],
        receive: Receive,
        is_stream: bool,
    ) -> None:
        """Waits for the load; raises an `ApiError` on failure, timeout or disconnect."""
        self._engine, self._acquired = engine, engine.acquire(request_load)
        if not self._acquired.done():
            timeout = engine.client.settings.request_timeout
            try:
                async with asyncio.timeout(timeout):
                    await self._wait(receive, is_stream, engine.client.settings.keep_alive)
            except TimeoutError:
                message = f"The request did not finish within {timeout:g} s."
                raise ApiError(504, message, code="timeout") from None
        self._acquired.result()

    async def _wait(self, receive: Receive, is_stream: bool, keep_alive: float) -> None:
        acquired = self._acquired
        assert acquired is not None
        disconnected = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            while not acquired.done():
                awaited = (acquired, disconnected)
                await asyncio.wait(awaited, timeout=keep_alive, return_when="FIRST_COMPLETED")
                if disconnected.done():
                    raise ApiError(499, "The client has disconnected.")
                if is_stream and not acquired.done():
                    await self._send_comment()
        finally:
            disconnected.cancel()

    async def _send_comment(self) -> None:
        if not self._is_started:
            self._is_started = True
            headers = [(name.encode(), value.encode()) for name, value in stream_headers().items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send(
            {"type": "http.response.body", "body": KEEP_ALIVE_COMMENT, "more_body": True}
        )

    async def send(self, message: Message) -> None:
        """Sends an ASGI message; after a keep-alive comment, errors become events."""
        if not self._is_started:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._is_error = message["status"] >= 400
        elif self._is_error:
            body = json.loads(message["body"])
            await self._send({**message, "body": error_event(self._path, body)})
        else:
            await self._send(message)

    def release(self) -> None:
        """Releases the model, or cancels the wait for it; a no-op before `wait`."""
        if self._engine is not None and self._acquired is not None:
            self._engine.release(self._acquired)


class LeaseMiddleware:
    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lease = scope[LEASE] = ModelLease(scope["path"], send)
        try:
            await self._app(scope, receive, lease.send)
        finally:
            lease.release()
