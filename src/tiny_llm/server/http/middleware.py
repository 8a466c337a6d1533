"""Before a request reaches its endpoint: the host's name, the API key, and the size of the body."""

import hmac
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError

# What programs ask to see whether the server is there; they have no key.
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
STATIC_PREFIX = "/page/"  # files of the page, which asks for the key


class HostMiddleware:
    """Refuses requests that were sent to a name that is not the server's.

    Without a key, a web page could use the server of the person who reads it: the page's name is
    changed to mean this machine after the page was loaded (DNS rebinding), and then its requests
    are of the same origin. They still carry the page's name. Addresses are allowed, and so are
    names without a dot, because the public DNS has none of those.

    Args:
        app: what is guarded.
        names: that are allowed besides; "*" allows every name.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]):
        self._app = app
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through, or answers 403."""
        name = _host_name(Headers(scope=scope).get("host", ""))
        if scope["type"] == "http" and not self._is_allowed(name):
            error = ApiError(
                403,
                f"The host '{name[:100]}' is not a name of this server; start it with "
                "--allowed-host NAME, or with a key.",
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
    """The name in a Host header, without the port."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:  # brackets that are not an address
        return header


class ApiKeyMiddleware:
    """Refuses requests without the API key.

    Args:
        app: what is guarded.
        key: that clients send as `Authorization: Bearer KEY` or as `x-api-key: KEY`.
    """

    def __init__(self, app: ASGIApp, key: str):
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through, or answers 401."""
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
        # In constant time: how long a comparison takes must not tell how much of a key is right.
        return hmac.compare_digest(given.encode("latin-1"), self._key)  # the bytes that came


class BodyLimitMiddleware:
    """Refuses bodies that are too large, whether they say so or not.

    Args:
        app: what is guarded.
        limit: in bytes.
    """

    def __init__(self, app: ASGIApp, limit: int):
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through, or answers 413."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "")
        # HTTP lets no more bytes through than were declared, unless they come in chunks.
        if declared.isdecimal() and "transfer-encoding" not in headers:
            respond = self._app if int(declared) <= self._limit else self._reject
            await respond(scope, receive, send)
            return
        received, is_refused = 0, False

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
            return message if received <= self._limit else {"type": "http.disconnect"}

        async def answer(message: Message) -> None:
            nonlocal is_refused
            if received <= self._limit:
                await send(message)
            elif not is_refused:  # whatever the app makes of a body that was cut off
                is_refused = True
                await self._reject(scope, receive, send)

        await self._app(scope, limited, answer)

    def _error(self) -> ApiError:
        return ApiError(413, f"The body is larger than the {self._limit} bytes that are allowed.")

    async def _reject(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._error().response(scope["path"])(scope, receive, send)
