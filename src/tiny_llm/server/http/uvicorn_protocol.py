"""uvicorn HTTP protocol: connection limits, header limits, timeouts, HTTP/1.0, upgrades."""

import asyncio
import logging
import resource
import socket
from functools import lru_cache
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .errors import ApiError, to_json

log = logging.getLogger("tiny_llm.server")

MAX_HEADER_BYTES = 65536  # maximum size of request line and headers
# Maximum seconds to receive headers, from the connection or from a later request's first byte.
HEADER_TIMEOUT = 30.0
SEND_TIMEOUT = 30.0  # maximum seconds without progress while unsent data awaits the client
MAX_UNSENT_BYTES = 16384  # unsent bytes per connection beyond which the kernel accepts no more
RESERVED_FILES = 48  # file descriptors not available to connections; the server uses about 12


class HttpProtocol(HttpToolsProtocol):
    def connection_made(self, transport: Any) -> None:
        """Sets socket options; refuses the connection if too many are open.

        Without TCP_NODELAY, which asyncio sets only on sockets created with an explicit protocol
        number, a second small write waits for the client's delayed ACK, 40 ms on Linux.
        By default, the kernel buffers megabytes and accepts more only when a third of them has been
        sent, so a slow reader would seem stalled to the send timeout; TCP_NOTSENT_LOWAT changes it.
        """
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
        transport.set_write_buffer_limits(high=0)  # call `pause_writing` at the first unsent byte
        super().connection_made(transport)
        self.parser = _RequestParser(self)
        self._send_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0  # bytes received of the current request head
        self._head_timer: asyncio.TimerHandle | None = None
        self._start_head_timer()
        max_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        max_connections = max(1, max_files - RESERVED_FILES)
        if max_files != resource.RLIM_INFINITY and len(self.connections) > max_connections:
            self._refuse(
                f"The server has reached its limit of {max_connections} connections; retry later."
            )

    def _refuse(self, reason: str) -> None:
        """Responds with 503 without awaiting the request; closes the connection."""
        body = to_json(ApiError(503, reason).body("/"))
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_send_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_send_timer()

    def resume_writing(self) -> None:
        self._stop_send_timer()
        super().resume_writing()

    def _start_send_timer(self) -> None:
        num_unsent = self.transport.get_write_buffer_size()
        self._send_timer = self.loop.call_later(SEND_TIMEOUT, self._on_send_timeout, num_unsent)

    def _on_send_timeout(self, num_unsent: int) -> None:
        """Disconnects a client if `num_unsent` bytes are still unsent."""
        if self.transport.get_write_buffer_size() < num_unsent:
            self._start_send_timer()
            return
        log.warning("disconnected a client that read nothing for %g s", SEND_TIMEOUT)
        self.transport.abort()  # `close` would wait for the client to read the rest

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEADER_TIMEOUT, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        """Closes the connection, unless a request is being processed."""
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or not self.cycle.more_body:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The request head exceeds {MAX_HEADER_BYTES} bytes.")
        elif self._head_bytes:
            self._start_head_timer()

    def on_headers_complete(self) -> None:
        """Stops the header timeout; disables chunked encoding for HTTP/1.0."""
        if self.requests_upgrade:  # the parser reads the request again
            return
        self._head_bytes = 0
        self._stop_head_timer()
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":
            self.cycle.chunked_encoding = True
            self.cycle.transport = _UnchunkedTransport(self.transport)  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        if not self.requests_upgrade:
            super().on_message_complete()

    @property
    def requests_upgrade(self) -> bool:
        is_named = any(name == b"upgrade" for name, _ in self.headers)
        return is_named and bool(self.parser.should_upgrade())

    def head_without_upgrade(self) -> bytes:
        line = b"%b %b HTTP/1.1" % (self.parser.get_method(), self.url)
        headers = [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([line, *headers, b"", b""])


class _RequestParser(httptools.HttpRequestParser):
    """Parser that ignores a request to upgrade, for example to h2c (Java's default client).

    httptools ends an upgraded request after its head, which loses the body.
    """

    def __init__(self, protocol: HttpProtocol):
        super().__init__(protocol)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn
        self._protocol = protocol

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._protocol.requests_upgrade:  # CONNECT
                raise
            self.feed_data(self._protocol.head_without_upgrade() + data[upgrade.args[0] :])


class _UnchunkedTransport:
    """Transport that strips uvicorn's chunked encoding."""

    def __init__(self, transport: Any):
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Writes a response head unchanged, and a chunk without its framing."""
        if not data.startswith(b"HTTP/"):
            size, _, rest = data.partition(b"\r\n")
            data = rest[: int(size or b"0", 16)]
        self._transport.write(data)


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Loop exception handler; logs `accept` failures at most once per minute.

    asyncio makes many attempts in a row, reports each failure and then pauses for a second.
    """
    if str(context["message"]).startswith("socket.accept()"):
        _warn_out_of_files(int(loop.time() // 60))
    else:
        loop.default_exception_handler(context)


@lru_cache(maxsize=1)
def _warn_out_of_files(minute: int) -> None:
    log.warning("out of file descriptors for new connections; raise the limit (ulimit -n)")
