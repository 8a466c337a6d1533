"""Access log (one line per request, with any error) and request counts."""

import logging
import re
import time
from collections.abc import Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("tiny_llm.access")

MAX_LOGGED_BYTES = 16384  # per request body and per response body
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
OTHER = "other"  # label for unknown methods and paths, to bound the number of labels

# Counts a request by endpoint, method and status.
Count = Callable[[str, str, int], None]


class TokenCounts(Protocol):
    """Token counts and timing of a generation request."""

    prompt_tokens: int
    output_tokens: int
    first_output_at: float | None

    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens found in the prefix cache."""


@dataclass
class AccessRecord:
    """One request's entry in the access log.

    Attributes:
        started_at: `time.monotonic()` on arrival.
        status: HTTP status; 499 if the client disconnected before the response.
        request_id: value of the `x-request-id` response header.
        error: message of the error response, or of a failed stream's error event.
        tokens: set once the request has been submitted to the engine.
    """

    started_at: float = field(default_factory=time.monotonic)
    status: int = 499
    request_id: str = "-"
    error: str | None = None
    tokens: TokenCounts | None = None

    def summary(self) -> str:
        """Request id, duration and token counts."""
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
            parts.append(f"error: {single_line(self.error)}")
        return " ".join(parts)


_current: ContextVar[AccessRecord | None] = ContextVar("access_record", default=None)


def current_record() -> AccessRecord:
    """Record of the request that the current task handles; a new record outside a request."""
    return _current.get() or AccessRecord()


class AccessLogMiddleware:
    """Counts and logs requests.

    Rejected and failed requests are always logged, with the reason; others if `log_requests`.

    Args:
        app: the wrapped application.
        count: counts a request.
        paths: known paths, used as labels of the counts.
        log_requests: whether to log successful requests as well.
        log_contents: whether to log request and response bodies.
    """

    def __init__(
        self,
        app: ASGIApp,
        count: Count,
        paths: Collection[str],
        log_requests: bool,
        log_contents: bool,
    ):
        self._app = app
        self._count = count
        self._paths = frozenset(paths)
        self._log_requests = log_requests
        self._log_contents = log_contents

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards a request, then counts and logs it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = AccessRecord()
        request, response = bytearray(), bytearray()

        async def receive_and_copy() -> Message:
            message = await receive()
            _append(request, message)
            return message

        async def send_and_inspect(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = Headers(raw=message["headers"])
                record.request_id = headers.get("x-request-id", "-")
            elif self._log_contents:
                _append(response, message)
            await send(message)

        _current.set(record)
        copied_receive = receive_and_copy if self._log_contents else receive
        try:
            await self._app(scope, copied_receive, send_and_inspect)
        finally:
            self._count(self._endpoint(scope), self._method(scope), record.status)
            self._log(scope, record)
            if self._log_contents:
                log.info("id=%s request: %s", record.request_id, _text(request))
                log.info("id=%s response: %s", record.request_id, _text(response))

    def _log(self, scope: Scope, record: AccessRecord) -> None:
        is_error = record.error is not None
        if is_error or self._log_requests:
            level = logging.WARNING if is_error else logging.INFO
            path, summary = single_line(scope["path"][:200]), record.summary()
            log.log(level, "%s %s %d %s", self._method(scope), path, record.status, summary)

    def _method(self, scope: Scope) -> str:
        return scope["method"] if scope["method"] in METHODS else OTHER

    def _endpoint(self, scope: Scope) -> str:
        """Path of the matched route, else a known path or `OTHER`."""
        path = scope["path"] if scope["path"] in self._paths else OTHER
        return str(getattr(scope.get("route"), "path", path))


def _append(content: bytearray, message: Message) -> None:
    body = message.get("body", b"")
    content += body[: MAX_LOGGED_BYTES + 1 - len(content)]


def _text(content: bytearray) -> str:
    text = single_line(content[:MAX_LOGGED_BYTES].decode(errors="replace"))
    return f"{text}… (truncated)" if len(content) > MAX_LOGGED_BYTES else text


def single_line(text: str) -> str:
    """Escapes control characters and line separators, to prevent log injection."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda found: repr(found[0])[1:-1], text)
