"""Gateway and replicas, without Ray: requests forwarded as ASGI messages.

Nothing is sent to the client before the replica has sent the first chunk of the body. Until then, a
request whose replica is lost is retried on another replica. Afterwards, its stream ends with an
error event in its protocol's format. A `Replica` is a complete server without a socket.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from starlette.types import Message, Receive, Scope, Send

from ...engine.engine_args import EngineArgs
from ...engine.factory import resolve_task
from ...engine.llm import LLM
from ..app import build_app
from ..http.errors import ApiError
from ..models.served_model import Phase
from ..process import ServerProcess
from ..protocol.streaming import error_event, wait_for_disconnect
from ..settings import ModelSpec, Settings
from .routing import Router, routing_key

REPLICA_LOST = "The replica that computed this response was lost; retry."
NO_REPLICA = "No replica is available; retry in a moment."
MAX_ATTEMPTS = 3  # maximum attempts per request, including the first
RETRY_DELAY = 0.5  # seconds before the next attempt, so that the router detects the lost replica


@dataclass(frozen=True)
class ReplicaRequest:
    """A forwarded request: plain data, sent between processes."""

    scope: Scope  # ASGI scope, picklable entries only
    body: bytes
    prompt: str  # routing key; may be empty


class ReplicaLostError(Exception):
    """The replica's process has exited or is unreachable."""


class ReplicaPool(Protocol):
    """Chooses a replica and sends it a request."""

    def stream(self, request: ReplicaRequest) -> AsyncGenerator[list[Message]]:
        """Yields the response's ASGI messages; closing the generator aborts it.

        Raises:
            ReplicaLostError: the replica was lost, before or during the response.
        """


class Gateway:
    def __init__(self, replicas: ReplicaPool):
        self._replicas = replicas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        body = await _read_body(receive)
        if body is None:
            return
        request = ReplicaRequest(_picklable_scope(scope), body, routing_key(body))
        forward = asyncio.create_task(self._forward(request, send))
        disconnect = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await asyncio.wait((forward, disconnect), return_when="FIRST_COMPLETED")
        finally:
            forward.cancel()
            disconnect.cancel()
            await asyncio.gather(forward, disconnect, return_exceptions=True)
        if not forward.cancelled():
            forward.result()

    async def _forward(self, request: ReplicaRequest, send: Send) -> None:
        path = request.scope["path"]
        for attempt in range(MAX_ATTEMPTS):
            response = _ForwardedResponse(path, send)
            batches = self._replicas.stream(request)
            try:
                async for batch in batches:
                    for message in batch:
                        await response.send(message)
                return
            except ReplicaLostError:
                if response.has_started:
                    await response.fail(ApiError(503, REPLICA_LOST))
                    return
            finally:
                await batches.aclose()
            if attempt < MAX_ATTEMPTS - 1:
                await asyncio.sleep(RETRY_DELAY)
        error = ApiError(503, NO_REPLICA, headers={"Retry-After": "1"}).response(path)
        await error(request.scope, _empty_receive, send)


class _ForwardedResponse:
    """Forwards a response; holds back its start until the first body message."""

    def __init__(self, path: str, send: Send):
        self.has_started = False
        self._path = path
        self._send = send
        self._start: Message | None = None
        self._num_events = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        if not self.has_started:
            assert self._start is not None, "expected http.response.start before the body"
            self.has_started = True
            await self._send(self._start)
        self._num_events += message.get("body", b"").count(b"\ndata: ")
        await self._send(message)

    async def fail(self, error: ApiError) -> None:
        """Ends an event stream with its protocol's error event.

        For other responses, raises an error, upon which the ASGI server closes the connection.
        """
        assert self._start is not None
        if dict(self._start["headers"]).get(b"content-type", b"").startswith(b"text/event-stream"):
            data = error_event(self._path, error.body(self._path), self._num_events)
            await self._send({"type": "http.response.body", "body": data, "more_body": False})
            return
        raise ReplicaLostError(error.message)


def _picklable_scope(scope: Scope) -> Scope:
    names = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string")
    entries = {name: scope[name] for name in (*names, "root_path", "client") if name in scope}
    headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    return {**entries, "asgi": {"version": "3.0"}, "server": None, "headers": headers}


async def _read_body(receive: Receive) -> bytes | None:
    """Reads a body; returns None if the client disconnects first."""
    parts = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)
    return None


async def _empty_receive() -> Message:
    return {"type": "http.disconnect"}


async def _lifespan(receive: Receive, send: Send) -> None:
    """Acknowledges ASGI lifespan messages; startup and shutdown need no work."""
    while (kind := (await receive())["type"]) == "lifespan.startup":
        await send({"type": f"{kind}.complete"})
    await send({"type": f"{kind}.complete"})


class Replica:
    """Handles a gateway's requests; `args.model` is a path."""

    def __init__(self, args: EngineArgs, settings: Settings):
        args = replace(args, task=resolve_task(args.task, args.model))
        spec = ModelSpec(settings.model_names, args, partial(LLM, **vars(args)))
        self._process = ServerProcess(settings, [spec], None)
        self._app = build_app(self._process.registry)

    async def start(self) -> None:
        self._process.start()
        await self._process.ready()

    def check_alive(self) -> None:
        """Health check; raises an `ApiError` (503) if the engine has failed."""
        model = self._process.registry.models[0]
        if model.phase is Phase.FAILED:
            raise ApiError(503, model.reason)

    async def handle_request(self, request: ReplicaRequest) -> AsyncGenerator[list[Message]]:
        """Yields the response's ASGI messages, in batches of all available ones.

        Closing the generator acts like `http.disconnect`: the request is aborted within a step.
        """
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        disconnected = asyncio.Event()
        request_messages = iter(
            [{"type": "http.request", "body": request.body, "more_body": False}]
        )

        async def receive() -> Message:
            for message in request_messages:
                return message
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            messages.put_nowait(message)

        task = asyncio.ensure_future(self._app(dict(request.scope), receive, send))
        task.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while True:
                items = [await messages.get()]
                while not messages.empty():
                    items.append(messages.get_nowait())
                batch = [message for message in items if message is not None]
                if batch:
                    yield batch
                if len(batch) < len(items):
                    break
            await task
        finally:
            disconnected.set()
            if not task.done():
                await asyncio.wait([task])


class ReplicaHandle(Protocol):
    """Sends requests to one replica: a `Replica`, or a connection to one."""

    def handle_request(self, request: ReplicaRequest) -> AsyncGenerator[list[Message]]:
        """See `ReplicaPool.stream`."""


class RoutedReplicaPool:
    """`ReplicaPool` that uses this package's routers, without Ray; counts requests in flight.

    Attributes:
        loads: number of requests in flight, by replica number; without lost replicas.
    """

    def __init__(self, replicas: Sequence[ReplicaHandle], router: Router):
        self._replicas = dict(enumerate(replicas))
        self._router = router
        self._num_added = len(replicas)
        self.loads = dict.fromkeys(self._replicas, 0)

    async def stream(self, request: ReplicaRequest) -> AsyncGenerator[list[Message]]:
        if not self.loads:
            raise ReplicaLostError("All replicas are lost.")
        with self._in_flight(request.prompt) as replica:
            async with aclosing(replica.handle_request(request)) as batches:
                async for messages in batches:
                    yield messages

    @contextmanager
    def _in_flight(self, key: str) -> Iterator[ReplicaHandle]:
        """Chooses a replica for a routing key; counts a request in flight on it.

        The request is in flight until the block exits. If the block raises `ReplicaLostError`, the
        replica gets no further requests and the router forgets it.
        """
        # [task 5.7.4 in-flight]
        chosen = self._router.choose(key, self.loads)
        self.loads[chosen] += 1
        try:
            yield self._replicas[chosen]
        except ReplicaLostError:
            self.loads.pop(chosen, None)
            self._replicas.pop(chosen, None)
            self._router.forget(chosen)
            raise
        finally:
            if chosen in self.loads:
                self.loads[chosen] -= 1
        # [/task 5.7.4 in-flight]

    def add(self, replica: ReplicaHandle) -> int:
        """Adds a replica, e.g. to replace a lost one; returns its number."""
        number, self._num_added = self._num_added, self._num_added + 1
        self._replicas[number] = replica
        self.loads[number] = 0
        return number
