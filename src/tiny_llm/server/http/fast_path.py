"""The short way to the endpoints that are asked most.

FastAPI looks for a route among all, opens stacks of contexts, and solves dependencies before it
reads a body: half a millisecond of the event loop's time a request, in which no other client is
served. An endpoint that needs a body and nothing else can do without. What cannot be answered this
way, such as a body that is not valid, takes FastAPI's, which says what is wrong with it.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, get_type_hints

from fastapi import FastAPI, Request
from pydantic import BaseModel, ValidationError
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from .errors import ApiError, internal_error

Endpoint = Callable[[Any, Request], Awaitable[Response]]


class FastPath:
    """Answers some paths by itself, and all others by FastAPI.

    Args:
        app: has these endpoints, too: for the document, and for what is refused.
        endpoints: by the path to which they are posted. A body has the type of the parameter
            `body`.
    """

    def __init__(self, app: FastAPI, endpoints: Mapping[str, Endpoint]):
        self._app = app
        self._endpoints = {
            path: (get_type_hints(endpoint)["body"], endpoint)
            for path, endpoint in endpoints.items()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        found = self._endpoints.get(scope.get("path", "")) if _is_json_post(scope) else None
        if found is None:
            await self._app(scope, receive, send)
            return
        kind, endpoint = found
        messages = await _read_body(receive)
        again = _replay(messages, receive)
        try:
            content = b"".join(message.get("body", b"") for message in messages)
            body = kind.model_validate_json(content)
        except ValidationError:
            await self._app(scope, again, send)
            return
        scope["app"] = self._app
        response = await _call_endpoint(endpoint, body, Request(scope, receive))
        await response(scope, receive, send)


async def _call_endpoint(endpoint: Endpoint, body: BaseModel, request: Request) -> Response:
    path = request.url.path
    try:
        return await endpoint(body, request)
    except ApiError as error:
        return error.response(path)
    except Exception as error:
        return internal_error(request.method, path, error)


def _is_json_post(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "POST":
        return False
    kinds = [value for name, value in scope["headers"] if name == b"content-type"]
    return len(kinds) == 1 and kinds[0].partition(b";")[0].strip() == b"application/json"


async def _read_body(receive: Receive) -> list[Message]:
    """The messages of a body; the last one may say that the client has left."""
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


def _replay(messages: list[Message], receive: Receive) -> Receive:
    """Gives messages that were read once more, and then new ones."""
    waiting = iter(messages)

    async def again() -> Message:
        return next(waiting, None) or await receive()

    return again
