"""Selection of a request's model, and waiting for its load."""

import asyncio
import json
from collections.abc import Mapping, Sequence

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...models.heads.pooling import Task
from ..http.errors import ApiError, bad_request, timeout_error
from ..protocol.base_schema import RequestBody
from ..protocol.streaming import (
    KEEP_ALIVE_COMMENT,
    error_event,
    stream_headers,
    wait_for_disconnect,
)
from ..settings import BODY_BYTES_PER_TOKEN, MAX_BODY_BYTES, MIN_BODY_BYTES
from .model_registry import ModelRegistry
from .served_model import ServedModel

# What a model does, by its task: verb phrases for error messages.
CAPABILITIES: Mapping[Task, str] = {
    "generate": "generates text",
    "embed": "computes embeddings",
    "score": "scores documents",
}
LEASE = "tiny_llm.model_lease"  # key of the request's lease in the ASGI scope


def get_models(request: Request) -> Sequence[ServedModel]:
    registry: ModelRegistry = request.app.state.registry
    return registry.models


def get_model(request: Request, name: str | None = None, task: Task | None = None) -> ServedModel:
    """Returns a served model, by default the first.

    Raises:
        ApiError: 404, the model is not served; 400, the model is for a different task.
    """
    models = get_models(request)
    model = models[0]
    if name is not None:
        named = {each: model for model in models for each in model.names}
        if name not in named:
            served = "', '".join(named)
            raise ApiError(
                404,
                f"The model '{name[:100]}' does not exist; this server serves '{served}'.",
                "model",
                "model_not_found",
            )
        model = named[name]
    if task not in (None, model.spec.task):
        use = CAPABILITIES[model.spec.task]
        raise bad_request(f"The model '{model.name}' only {use}.", "model")
    return model


async def use_model(
    request: Request, body: RequestBody, task: Task | None = None, is_stream: bool = False
) -> ServedModel:
    """Returns a request's model, loaded until the response ends; checks the body's fields.

    Without on-demand loading, raises an `ApiError` (503) unless the model is loaded. With it, an
    event stream gets keep-alive comments during the load.
    """
    model = get_model(request, body.model, task)
    body.check_fields()
    registry: ModelRegistry = request.app.state.registry
    if registry.is_on_demand:
        lease: ModelLease = request.scope[LEASE]
        await lease.wait(model, request.receive, is_stream)
    else:
        model.check_ready()
    return model


def max_body_bytes(models: Sequence[ServedModel]) -> int:
    if models[0].settings.max_body_bytes is not None:
        return models[0].settings.max_body_bytes
    infos = [model.engine_info for model in models]
    context = max(0 if info is None else info.max_seq_len for info in infos)
    return min(max(MIN_BODY_BYTES, BODY_BYTES_PER_TOKEN * context), MAX_BODY_BYTES)


class ModelLease:
    """A request's lease on a model: keeps it loaded until the response ends.

    If a streaming request waits longer than the keep-alive interval, a keep-alive comment starts
    its response. A later error response becomes an error event in the protocol of `path`.
    """

    def __init__(self, registry: ModelRegistry, path: str, send: Send):
        self._registry = registry
        self._path = path
        self._send = send
        self._held: tuple[ServedModel, asyncio.Future[None]] | None = None
        self._is_started = False  # whether a keep-alive comment has started the response
        self._is_error = False  # whether the response after the comments is an error

    async def wait(self, model: ServedModel, receive: Receive, is_stream: bool) -> None:
        """Waits for the load; raises an `ApiError` on failure, timeout or disconnect."""
        acquired = self._registry.acquire(model)
        self._held = model, acquired
        if acquired.done():
            acquired.result()
            return
        timeout = model.settings.request_timeout
        disconnected = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            async with asyncio.timeout(timeout):
                while not acquired.done():
                    await asyncio.wait(
                        (acquired, disconnected),
                        timeout=model.settings.keep_alive,
                        return_when="FIRST_COMPLETED",
                    )
                    if disconnected.done():
                        raise ApiError(499, "The client has disconnected.")
                    if is_stream and not acquired.done():
                        await self._send_comment()
        except TimeoutError:
            raise timeout_error(timeout) from None
        finally:
            disconnected.cancel()
        acquired.result()

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
        if self._held is not None:
            self._registry.release(*self._held)


class LeaseMiddleware:
    def __init__(self, app: ASGIApp, registry: ModelRegistry):
        self._app = app
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lease = scope[LEASE] = ModelLease(self._registry, scope["path"], send)
        try:
            await self._app(scope, receive, lease.send)
        finally:
            lease.release()
