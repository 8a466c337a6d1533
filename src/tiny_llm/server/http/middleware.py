"""ASGI middleware: Host check, API key, body size limit."""

import hmac
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError

# Probes and the web page's shell, available without a key.
PUBLIC_PATHS = {
    "/",
    "/health",
    "/ping",
    "/ready",
    "/version",
    "/v1/models",
    "/metrics",
    "/openapi.json",
    "/docs",
}
STATIC_PREFIX = "/page/"  # files of the web page, which prompts for the key


class HostMiddleware:
    """Rejects requests with a foreign Host header, against DNS rebinding.

    Without a key, a malicious web page could use a server on its visitor's machine: it re-points
    its own domain to that machine after loading, which makes its requests same-origin. Their Host
    header is still the page's domain. IP addresses and names without a dot, which public DNS does
    not resolve, are always allowed.

    Args:
        app: the wrapped application.
        names: further allowed names; "*" allows every name.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]):
        self._app = app
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request, or responds with 403."""
        name = _host_name(Headers(scope=scope).get("host", ""))
        if scope["type"] == "http" and not self._is_allowed(name):
            error = ApiError(
                403,
                f"The Host '{name[:100]}' is not allowed; start the server with "
                "--allowed-host NAME, or with an API key.",
            )
            await error.response(scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_allowed(self, name: str) -> bool:
        if "." not in name or name.endswith(".localhost") or self._names & {name, "*"}:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def _host_name(header: str) -> str:
    """Host name of a Host header, without the port."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:  # invalid brackets
        return header


class ApiKeyMiddleware:
    """Rejects requests without the API key.

    Args:
        app: the wrapped application.
        key: the key, sent as `Authorization: Bearer KEY` or as `x-api-key: KEY`.
    """

    def __init__(self, app: ASGIApp, key: str):
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request, or responds with 401."""
        if scope["type"] == "http" and not self._is_authorized(scope):
            error = ApiError(
                401,
                "The API key is missing or wrong; send `Authorization: Bearer KEY` or "
                "`x-api-key: KEY`.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.response(scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_authorized(self, scope: Scope) -> bool:
        path = scope["path"]
        if path in PUBLIC_PATHS or path.startswith(STATIC_PREFIX) or scope["method"] == "OPTIONS":
            return True
        headers = Headers(scope=scope)
        bearer = headers.get("authorization", "")
        given = headers.get("x-api-key") or bearer.removeprefix("Bearer ").strip()
        # Constant time, against timing attacks. Starlette decodes headers as Latin-1.
        return hmac.compare_digest(given.encode("latin-1"), self._key)


class BodyLimitMiddleware:
    """Rejects bodies over the limit, with and without Content-Length.

    Args:
        app: the wrapped application.
        limit: maximum size in bytes.
    """

    def __init__(self, app: ASGIApp, limit: int):
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request, or responds with 413."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "")
        # The parser enforces Content-Length, except with chunked transfer encoding.
        if declared.isdecimal() and "transfer-encoding" not in headers:
            respond = self._app if int(declared) <= self._limit else self._reject
            await respond(scope, receive, send)
            return
        received, is_rejected = 0, False

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
            return message if received <= self._limit else {"type": "http.disconnect"}

        async def send_or_reject(message: Message) -> None:
            nonlocal is_rejected
            if received <= self._limit:
                await send(message)
            elif not is_rejected:  # replaces the response to the truncated body
                is_rejected = True
                await self._reject(scope, receive, send)

        await self._app(scope, receive_limited, send_or_reject)

    def _error(self) -> ApiError:
        return ApiError(413, f"The body exceeds the maximum of {self._limit} bytes.")

    async def _reject(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._error().response(scope["path"])(scope, receive, send)
