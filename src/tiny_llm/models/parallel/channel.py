"""Messages between two ranks: JSON over a stream socket, each with its length in front."""

import json
import socket
import struct
from typing import Any

LENGTH_PREFIX = struct.Struct("<Q")


class Channel:
    """One end of a connection.

    Args:
        connection: a connected stream socket, which this object closes.
    """

    def __init__(self, connection: socket.socket):
        self.connection = connection

    def send(self, message: Any) -> None:
        """Sends plain data.

        Raises:
            OSError: the other end is gone.
        """
        text = json.dumps(message).encode()
        self.connection.sendall(LENGTH_PREFIX.pack(len(text)) + text)

    def receive(self, max_bytes: int | None = None) -> Any:
        """The next message; None if the other end is gone.

        Args:
            max_bytes: bytes that a message from a stranger may have.

        Raises:
            ValueError: it has more, or is no JSON.
        """
        head = self._read(LENGTH_PREFIX.size)
        if head is None:
            return None
        [length] = LENGTH_PREFIX.unpack(head)
        if max_bytes is not None and length > max_bytes:
            raise ValueError(f"a message of {length} bytes")
        text = self._read(length)
        return None if text is None else json.loads(text)

    def close(self) -> None:
        """Ends the connection."""
        self.connection.close()

    def _read(self, size: int) -> bytes | None:
        """So many bytes; None if the connection ends before."""
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.connection.recv(min(size - len(data), 2**20))
            except ConnectionError:
                return None
            if not piece:
                return None
            data += piece
        return bytes(data)
