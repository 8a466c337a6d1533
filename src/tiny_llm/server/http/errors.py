"""Errors as clients see them: one sentence, in the form of the protocol that was spoken.

What a client did wrong is told; what went wrong inside is in the log, and not in an answer.
"""

import json
import logging
import uuid
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

log = logging.getLogger("tiny_llm.server")

# The `type` of an error, by HTTP status: OpenAI's, and Anthropic's.
ERROR_TYPES = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: ("not_found_error", "not_found_error"),
    405: ("invalid_request_error", "invalid_request_error"),
    413: ("invalid_request_error", "request_too_large"),
    415: ("invalid_request_error", "invalid_request_error"),
    429: ("rate_limit_error", "rate_limit_error"),
    500: ("server_error", "api_error"),
    503: ("service_unavailable_error", "overloaded_error"),
    504: ("timeout_error", "timeout_error"),
}
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
ANTHROPIC_PATHS = ("/v1/messages",)
INTERNAL_ERROR = "The server failed while it answered; its log says why."


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: of HTTP, one of `ERROR_TYPES`.
        message: one sentence.
        param: the field that it is about.
        code: a short name of it, for programs.
        headers: of the answer.
        details: that the message tells, for programs, by their names.
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
        """The error as the protocol of a path has it; Anthropic's has the request's id, too."""
        openai_type, anthropic_type = ERROR_TYPES.get(self.status, ERROR_TYPES[500])
        if path.startswith(ANTHROPIC_PATHS):
            told: dict[str, Any] = {"type": anthropic_type, "message": self.message}
            if self.code is not None:
                told["details"] = {"error_code": self.code, **self.details}
            return {"type": "error", "error": told, "request_id": request_id}
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
        """The error as an answer to a request of that path."""
        ids = request_id_headers()
        body = self.body(path, ids["request-id"])
        return JsonResponse(body, self.status, headers={**self.headers, **ids})


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: what was asked for cannot be."""
    return ApiError(400, message, param, code)


class JsonResponse(Response):
    """Plain JSON; half of a surrogate pair, which JSON can hold and UTF-8 cannot, becomes `?`."""

    media_type = "application/json"

    def __init__(
        self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None
    ):
        super().__init__(content, status_code, {**request_id_headers(), **(headers or {})})

    def render(self, content: Any) -> bytes:
        """The body."""
        return to_json(content)


def request_id_headers() -> dict[str, str]:
    """Headers by which OpenAI's and Anthropic's clients name a request when they report it."""
    request_id = f"req_{uuid.uuid4().hex[:24]}"
    return {"x-request-id": request_id, "request-id": request_id}


def to_json(content: Any) -> bytes:
    """Compact JSON in UTF-8."""
    return ENCODER.encode(content).encode("utf-8", "replace")


def internal_error(method: str, path: str, error: Exception) -> Response:
    """The answer to what we did wrong: the trace goes to the log, and not to the client."""
    log.error("%s %s failed", method, path, exc_info=error)
    return ApiError(500, INTERNAL_ERROR).response(path)
