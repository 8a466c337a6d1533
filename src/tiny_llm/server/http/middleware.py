"""ASGI middleware: access log, Host check, API key, body limits."""

import asyncio
import hmac
import logging
import zlib
from collections.abc import Callable, Collection, Iterator
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...engine.inputs.limits import JsonLimits
from ...errors import UserError, escape_control_characters
from ..settings import MIN_BODY_BYTES, Settings
from .errors import ACCESS_RECORD, IGNORED_FIELDS_HEADER, AccessRecord, ApiError, bad_request

access_log = logging.getLogger("tiny_llm.access")

MAX_LOGGED_BYTES = 16384  # maximum bytes logged of a request or response body
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
OTHER = "other"  # label for unknown methods and paths, to bound the number of labels

# Paths that do not require the API key: probes, metrics, the model list and the web UI's pages.
PUBLIC_PATHS = {
    *("/", "/api/hello", "/health", "/ping", "/ready", "/version", "/v1/models", "/metrics"),
    *("/openapi.json", "/docs"),
}
PUBLIC_PREFIX = "/page/"  # files of the web UI, which prompts for the key
PIECE_BYTES = 2**16  # maximum size of a decoded piece: a kilobyte may decode to a megabyte
RAISE_LIMIT = "send a smaller body, or raise the server's --max-body-bytes"

# Content-Encodings of request bodies, and their decoders.
DECODERS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "deflate": zlib.decompressobj,
}
ERRORS: tuple[type[Exception], ...] = (zlib.error, EOFError)
try:
    from compression import zstd  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # before Python 3.14
    pass
else:
    WINDOW = {zstd.DecompressionParameter.window_log_max: 23}  # 8 MiB, the bound of RFC 9659
    DECODERS["zstd"] = lambda: zstd.ZstdDecompressor(options=WINDOW)
    ERRORS = (*ERRORS, zstd.ZstdError)


class AccessLogMiddleware:
    """Counts and logs requests; names ignored fields in a response header.

    Rejected and failed requests are always logged, with the reason; others if `log_requests`.
    Requests that match neither a route nor one of `paths` are counted as `OTHER`.
    """

    def __init__(
        self,
        app: ASGIApp,
        count: Callable[[str, str, int], None],
        paths: Collection[str],
        settings: Settings,
    ):
        self._app = app
        self._count = count
        self._paths = frozenset(paths)
        self._strict_fields = settings.strict_fields
        self._log_requests = settings.log_requests or settings.log_contents
        self._log_contents = settings.log_contents

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = AccessRecord(scope["path"], self._strict_fields)
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
                if record.ignored_fields:
                    names = ",".join(record.ignored_fields).encode()
                    named = [*message["headers"], (IGNORED_FIELDS_HEADER, names)]
                    message = {**message, "headers": named}
            elif self._log_contents:
                _append(response, message)
            await send(message)

        ACCESS_RECORD.set(record)
        copied_receive = receive_and_copy if self._log_contents else receive
        try:
            await self._app(scope, copied_receive, send_and_inspect)
        finally:
            self._count(self._endpoint(scope), self._method(scope), record.status)
            self._log(scope, record)
            if self._log_contents:
                access_log.info("id=%s request: %s", record.request_id, _text(request))
                access_log.info("id=%s response: %s", record.request_id, _text(response))

    def _log(self, scope: Scope, record: AccessRecord) -> None:
        is_error = record.error is not None
        if is_error or self._log_requests:
            level = logging.WARNING if is_error else logging.INFO
            path = escape_control_characters(scope["path"][:200], one_line=True)
            summary = record.summary()
            access_log.log(level, "%s %s %d %s", self._method(scope), path, record.status, summary)

    def _method(self, scope: Scope) -> str:
        return scope["method"] if scope["method"] in METHODS else OTHER

    def _endpoint(self, scope: Scope) -> str:
        path = scope["path"] if scope["path"] in self._paths else OTHER
        return str(getattr(scope.get("route"), "path", path))


def _append(content: bytearray, message: Message) -> None:
    body = message.get("body", b"")
    content += body[: MAX_LOGGED_BYTES + 1 - len(content)]


def _text(content: bytearray) -> str:
    text = content[:MAX_LOGGED_BYTES].decode(errors="replace")
    text = escape_control_characters(text, one_line=True)
    return f"{text}… (truncated)" if len(content) > MAX_LOGGED_BYTES else text


class AccessMiddleware:
    """Rejects requests without the API key (401) or, if `key` is None, with a foreign Host (403).

    Public paths need no key. Without a key, a malicious web page could use a server on its
    visitor's machine by DNS rebinding: once the page's domain resolves to that machine, its
    requests are same-origin. Their Host header still names the domain. IP addresses, `hosts`, and
    names that public DNS does not resolve (without a dot, or ending in .localhost) are allowed; "*"
    allows any name.
    """

    def __init__(self, app: ASGIApp, key: str | None, hosts: Collection[str] = ()):
        self._app = app
        self._key = None if key is None else key.encode()
        self._hosts = {name.lower() for name in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        check = self._check_host if self._key is None else self._check_key
        error = check(scope, Headers(scope=scope)) if scope["type"] == "http" else None
        app = self._app if error is None else error.response(scope["path"])
        await app(scope, receive, send)

    def _check_host(self, scope: Scope, headers: Headers) -> ApiError | None:
        host = _host_name(headers.get("host", ""))
        if "." not in host or host.endswith(".localhost") or self._hosts & {host, "*"}:
            return None
        try:
            ip_address(host)
        except ValueError:
            return ApiError(
                403,
                f"The Host '{host[:100]}' is not allowed; start the server with "
                "--allowed-host NAME, or with an API key.",
            )
        return None

    def _check_key(self, scope: Scope, headers: Headers) -> ApiError | None:
        assert self._key is not None
        path = scope["path"]
        if path in PUBLIC_PATHS or path.startswith(PUBLIC_PREFIX) or scope["method"] == "OPTIONS":
            return None
        authorization = headers.get("authorization", "")
        if authorization[:7].lower() == "bearer ":
            authorization = authorization[7:].strip()
        # Either header may hold the key, because some clients send a placeholder in the other.
        given = (headers.get("x-api-key", ""), authorization)
        # Constant-time comparison prevents timing attacks. Starlette decodes headers as Latin-1.
        if any(hmac.compare_digest(key.encode("latin-1"), self._key) for key in given):
            return None
        return ApiError(
            401,
            "The API key is missing or invalid; send `Authorization: Bearer KEY` or "
            "`x-api-key: KEY`.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _host_name(header: str) -> str:
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:  # invalid brackets
        return header


class BodyDecoder:
    """Decodes a body; `encoding` is its Content-Encoding header, "" without one."""

    def __init__(self, encoding: str):
        self._encoding, self._decoder = encoding.strip().lower(), None
        if self._encoding in DECODERS:
            self._decoder = DECODERS[self._encoding]()
        elif self._encoding not in ("", "identity"):
            known = ", ".join(DECODERS)
            reason = f"Content-Encoding must be one of {known}, got '{self._encoding[:100]}'."
            raise ApiError(415, reason, headers={"Accept-Encoding": known})

    def decode(self, data: bytes, is_last: bool) -> Iterator[bytes]:
        """Decodes received data in pieces; raises an `ApiError` (400) if it is malformed."""
        decoder: Any = self._decoder
        if decoder is None:
            yield data
            return
        try:
            is_drained = not data
            while not is_drained:
                piece = decoder.decompress(data, PIECE_BYTES)
                data = getattr(decoder, "unconsumed_tail", b"")  # zstd keeps it
                is_drained = decoder.eof or len(piece) < PIECE_BYTES
                yield piece
        except ERRORS as error:
            raise self._malformed() from error
        if decoder.unused_data or (is_last and not decoder.eof):
            raise self._malformed()

    def _malformed(self) -> ApiError:
        return bad_request(f"The body is not valid {self._encoding}.")


class BodyMiddleware:
    """Reads and decodes the body before the application runs; enforces limits.

    Size, number of JSON values and nesting depth are checked as the body arrives. If a JSON
    limit is exceeded, the rest of the body is read and discarded, because many clients send the
    whole body before reading the response.
    """

    def __init__(self, app: ASGIApp, max_bytes: Callable[[], int], timeout: float):
        self._app = app
        self._max_bytes = max_bytes
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request, or responds with 400, 408, 413, 415 or 503 (shutdown)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(Headers(scope=scope), receive)
        except ApiError as error:
            await error.response(scope["path"])(scope, receive, send)
            return
        if body is not None:
            await self._app(scope, _receive_after(body, receive), send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """Reads a body within the limits; returns None if the client disconnects."""
        max_bytes = self._max_bytes()
        declared = headers.get("content-length", "")
        # The HTTP parser enforces the declared length, except with chunked transfer encoding.
        if declared.isdecimal() and "transfer-encoding" not in headers:
            _check_size(int(declared[:20]), max_bytes)
        limits = JsonLimits("the body", max(1.0, max_bytes / MIN_BODY_BYTES), RAISE_LIMIT)
        decoder = BodyDecoder(headers.get("content-encoding", ""))
        error: ApiError | None = None
        chunks: list[bytes] = []
        num_received, num_bytes, more_body = 0, 0, True
        while more_body:
            message = await self._next_message(receive)
            if message["type"] != "http.request":
                return None
            chunk, more_body = message.get("body", b""), message.get("more_body", False)
            num_received += len(chunk)
            _check_size(num_received, max_bytes)
            for piece in decoder.decode(chunk, not more_body):
                num_bytes += len(piece)
                _check_size(num_bytes, max_bytes)
                if error is None:
                    chunks.append(piece)
                    try:
                        limits.feed(piece)
                    except UserError as reason:
                        error = bad_request(str(reason))
                        chunks.clear()
                if piece is not chunk:  # a chunk may decode to many pieces
                    await asyncio.sleep(0)
        if error is not None:
            raise error
        return b"".join(chunks)

    async def _next_message(self, receive: Receive) -> Message:
        try:
            async with asyncio.timeout(self._timeout):
                return await receive()
        except TimeoutError:
            reason = f"The body is incomplete: no data for {self._timeout:g} s; resend the request."
            raise ApiError(408, reason, headers={"Connection": "close"}) from None
        except asyncio.CancelledError:  # uvicorn cancels requests at the end of a shutdown
            reason = "The server is shutting down; the body did not arrive in time."
            raise ApiError(503, reason, headers={"Connection": "close"}) from None


def _check_size(num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise ApiError(413, f"The body exceeds the maximum of {max_bytes} bytes; {RAISE_LIMIT}.")


def _receive_after(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_next() -> Message:
        return messages.pop() if messages else await receive()

    return receive_next
