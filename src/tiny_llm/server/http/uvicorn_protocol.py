"""uvicorn's HTTP protocol, with bounded request heads and HTTP/1.0 streams."""

import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 65536  # request line and headers


class HttpProtocol(HttpToolsProtocol):
    """HTTP connection of one client."""

    def connection_made(self, transport: Any) -> None:
        """Sets up a connection, without Nagle's algorithm.

        asyncio sets TCP_NODELAY only on sockets created with an explicit protocol number. Without
        it, a second small write waits for the client's delayed ACK, 40 ms on Linux.
        """
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self._head_bytes = 0  # of the current request head

    def data_received(self, data: bytes) -> None:
        """Parses data; rejects an oversized request head."""
        if self.cycle is None or not self.cycle.more_body:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response("The request head is too large.")

    def on_headers_complete(self) -> None:
        """Handles the end of a request head."""
        self._head_bytes = 0
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":  # which lacks chunked encoding
            self.cycle.chunked_encoding = True
            self.cycle.transport = _UnchunkedTransport(self.transport)  # type: ignore[assignment]


class _UnchunkedTransport:
    """Transport that removes uvicorn's chunked encoding.

    Args:
        transport: transport of the connection.
    """

    def __init__(self, transport: Any):
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Writes a response head unchanged, a chunk without its framing."""
        if not data.startswith(b"HTTP/"):
            size, _, rest = data.partition(b"\r\n")
            data = rest[: int(size or b"0", 16)]
        self._transport.write(data)
