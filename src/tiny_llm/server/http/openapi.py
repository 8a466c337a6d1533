"""Response schemas for `/openapi.json`: JSON, event streams, errors."""

from typing import Any

from fastapi import APIRouter

from .errors import JsonResponse

_STRING, _OPTIONAL = {"type": "string"}, {"type": ["string", "null"]}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


_OPENAI_ERROR = _object(
    error=_object(message=_STRING, type=_STRING, param=_OPTIONAL, code=_OPTIONAL)
)
_ANTHROPIC_ERROR = _object(type={"const": "error"}, error=_object(type=_STRING, message=_STRING))
_DESCRIPTIONS = {
    400: "The request is invalid.",
    401: "The API key is missing or invalid.",
    403: "The Host header is not allowed.",
    404: "The model does not exist.",
    408: "The body is incomplete.",
    413: "The body exceeds the size limit.",
    415: "The content type is not JSON.",
    429: "The queue is full.",
    500: "The engine failed.",
    503: "The server is loading or shutting down, or has failed.",
    504: "The request timed out.",
}

Responses = dict[int | str, dict[str, Any]]


def _errors(schema: dict[str, Any]) -> Responses:
    return {
        status: {"description": text, "content": {"application/json": {"schema": schema}}}
        for status, text in _DESCRIPTIONS.items()
    }


ERROR_RESPONSES = _errors(_OPENAI_ERROR)
ANTHROPIC_ERROR_RESPONSES = _errors(_ANTHROPIC_ERROR)


def streaming_route(router: APIRouter, path: str, tag: str, errors: Responses) -> Any:
    """Decorator for a POST endpoint that returns JSON or server-sent events."""
    content = {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}}
    responses: Responses = {200: {"description": "The response.", "content": content}, **errors}
    return router.post(path, tags=[tag], response_class=JsonResponse, responses=responses)
