"""A connection: uvicorn's protocol, with a bound on heads, and what is written in a turn sent once.

The head of an answer, its first events and its end are written one after the other. A `send` costs
more than all of them, and another thread may take the interpreter meanwhile. So what is written
waits until the event loop has come to the end of its turn, and goes out together.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 65536  # bytes of a request before its body


class HttpProtocol(HttpToolsProtocol):
    """Speaks HTTP with one client."""

    def connection_made(self, transport: Any) -> None:
        """A client has connected."""
        super().connection_made(CoalescingTransport(transport, self.loop))  # type: ignore[arg-type]
        self._head_bytes = 0  # of the head that is being read

    def data_received(self, data: bytes) -> None:
        """Reads; a head that is too large is an invalid request."""
        if self.cycle is None or not self.cycle.more_body:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_headers_complete(self) -> None:
        """A head has ended."""
        self._head_bytes = 0
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":  # which knows no chunks; uvicorn writes them
            self.cycle.chunked_encoding = True
            self.cycle.transport = _UnchunkedTransport(self.transport)  # type: ignore[assignment]


class CoalescingTransport:
    """A transport that sends once what is written in a turn of the event loop.

    Args:
        transport: the connection's.
        loop: the event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop):
        self._transport = transport
        self._loop = loop
        self._written: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)  # all else is the transport's own

    def write(self, data: bytes) -> None:
        """Sends it at the end of the turn."""
        if not self._written:
            self._loop.call_soon(self._flush)
        self._written.append(data)

    def close(self) -> None:
        """Sends what was written, and then closes."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._written:
            data = b"".join(self._written)
            self._written.clear()
            self._transport.write(data)


class _UnchunkedTransport:
    """A transport for uvicorn's answers in chunks, which sends what is in them.

    Args:
        transport: the connection's.
    """

    def __init__(self, transport: Any):
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Sends a head, or what is in a chunk."""
        if not data.startswith(b"HTTP/"):
            size, _, rest = data.partition(b"\r\n")
            data = rest[: int(size or b"0", 16)]
        self._transport.write(data)
