"""What `/openapi.json` says of answers: their forms, and the errors of each protocol."""

from typing import Any

_OPENAI_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
_DESCRIPTIONS = {
    400: "The request asks for what cannot be.",
    401: "The API key is missing or wrong.",
    403: "The request was sent to a name that is not the server's.",
    404: "There is no such model.",
    413: "The body is too large.",
    415: "The body says that it is not JSON.",
    429: "The queue is full.",
    500: "The engine failed.",
    503: "The server takes no requests: it is loading, shutting down or broken.",
    504: "The answer took too long.",
}

Responses = dict[int | str, dict[str, Any]]


def _errors(schema: dict[str, Any]) -> Responses:
    return {
        status: {"description": text, "content": {"application/json": {"schema": schema}}}
        for status, text in _DESCRIPTIONS.items()
    }


ERROR_RESPONSES = _errors(_OPENAI_ERROR)
ANTHROPIC_ERROR_RESPONSES = _errors(_ANTHROPIC_ERROR)


def streaming_responses(errors: Responses) -> Responses:
    """The answers of an endpoint that gives JSON, or a stream of events if asked to."""
    forms = {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}}
    return {200: {"description": "The answer.", "content": forms}, **errors}
