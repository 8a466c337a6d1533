"""Error responses in each protocol's format, their OpenAPI schemas, access log records.

Client errors get a one-sentence explanation; details of internal errors are only logged.
"""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import APIRouter
from starlette.responses import Response

from ...errors import UserError, escape_control_characters

# Value of an error's `type` field in OpenAI's and in Anthropic's protocol, by HTTP status.
ERROR_TYPES = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: ("not_found_error", "not_found_error"),
    405: ("invalid_request_error", "invalid_request_error"),
    408: ("timeout_error", "timeout_error"),
    413: ("invalid_request_error", "request_too_large"),
    415: ("invalid_request_error", "invalid_request_error"),
    429: ("rate_limit_error", "rate_limit_error"),
    500: ("server_error", "api_error"),
    503: ("service_unavailable_error", "overloaded_error"),
    504: ("timeout_error", "timeout_error"),
}
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
ANTHROPIC_PATHS = ("/v1/messages",)
IGNORED_FIELDS_HEADER = b"x-tiny-llm-ignored-fields"
INTERNAL_ERROR = "Internal server error; see the server's log."


class TokenCounts(Protocol):
    prompt_tokens: int
    output_tokens: int
    first_output_at: float | None

    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens found in the prefix cache."""


@dataclass
class AccessRecord:
    """One request's entry in the access log, and the names of its ignored fields."""

    path: str = ""
    strict_fields: bool = False  # whether ignored fields are errors
    started_at: float = field(default_factory=time.monotonic)
    status: int = 499  # the value if the client disconnects before the response
    request_id: str = "-"
    error: str | None = None  # message of an error response, or of a stream's error event
    tokens: TokenCounts | None = None  # set once the request has been submitted to the engine
    ignored_fields: Sequence[str] = ()

    def summary(self) -> str:
        parts = [f"id={self.request_id}", f"seconds={time.monotonic() - self.started_at:.3f}"]
        tokens = self.tokens
        if tokens is not None:
            parts += [
                f"prompt_tokens={tokens.prompt_tokens}",
                f"cached_tokens={tokens.cached_tokens}",
                f"output_tokens={tokens.output_tokens}",
            ]
            if tokens.first_output_at is not None:
                parts.append(f"ttft={tokens.first_output_at - self.started_at:.3f}")
        if self.error is not None:
            parts.append(f"error: {escape_control_characters(self.error, one_line=True)}")
        return " ".join(parts)


ACCESS_RECORD: ContextVar[AccessRecord | None] = ContextVar("access_record", default=None)


def current_record() -> AccessRecord:
    """The current request's record; outside a request, a new record."""
    return ACCESS_RECORD.get() or AccessRecord()


class ApiError(Exception):
    """An error response.

    Args:
        status: HTTP status; if not in `ERROR_TYPES`, the error has the `type` of status 500.
        param: the invalid field, or None.
        details: numbers in the message, added to the error object as separate fields.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, int] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        self.details = dict(details or {})

    def body(self, path: str, request_id: str | None = None) -> dict[str, Any]:
        """Error object in the protocol of `path`; Anthropic's has the request id."""
        openai_type, anthropic_type = ERROR_TYPES.get(self.status, ERROR_TYPES[500])
        if path.startswith(ANTHROPIC_PATHS):
            fields: dict[str, Any] = {"type": anthropic_type, "message": self.message}
            if self.code is not None:
                fields["details"] = {"error_code": self.code, **self.details}
            return {"type": "error", "error": fields, "request_id": request_id}
        return {
            "error": {
                "message": self.message,
                "type": openai_type,
                "param": self.param,
                "code": self.code,
                **self.details,
            }
        }

    def response(self, path: str) -> Response:
        """Error response to a request for `path`; recorded in the access log."""
        current_record().error = self.message
        ids = request_id_headers()
        body = self.body(path, ids["request-id"])
        return JsonResponse(body, self.status, headers={**self.headers, **ids})


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param, code)


@contextmanager
def user_errors_as_400(param: str | None = None) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise bad_request(str(error), param) from error


def timeout_error(seconds: float | None) -> ApiError:
    return ApiError(504, f"The request did not finish within {seconds:g} s.", code="timeout")


def context_length_error(num_tokens: int, max_seq_len: int, note: str = "") -> ApiError:
    return ApiError(
        400,
        # OpenAI and Anthropic clients match this text, then shorten the prompt.
        f"The prompt is too long: {num_tokens} tokens > {max_seq_len - 1} maximum{note}; this "
        f"model's maximum context length is {max_seq_len} tokens, at least one of them for the "
        "output.",
        code="context_length_exceeded",
        # Field names of llama.cpp's server.
        details={"n_prompt_tokens": num_tokens, "n_ctx": max_seq_len},
    )


class JsonResponse(Response):
    """JSON response. Lone surrogates, which UTF-8 cannot encode, become `?`."""

    media_type = "application/json"

    def __init__(
        self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None
    ):
        super().__init__(content, status_code, {**request_id_headers(), **(headers or {})})

    def render(self, content: Any) -> bytes:
        return to_json(content)


def request_id_headers() -> dict[str, str]:
    """A new request id, in the headers of OpenAI's and Anthropic's APIs."""
    request_id = f"req_{uuid.uuid4().hex[:24]}"
    return {"x-request-id": request_id, "request-id": request_id}


def to_json(content: Any) -> bytes:
    return ENCODER.encode(content).encode("utf-8", "replace")


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
