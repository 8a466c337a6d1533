"""Channel between two ranks: length-prefixed JSON and bytes over a stream socket."""

import json
import socket
import struct
import threading
from typing import Any

from ...errors import array_to_list

Buffer = bytes | bytearray | memoryview

LENGTH_PREFIX = struct.Struct("<Q")


class Channel:
    """One end of the connection between two ranks; owns its stream socket."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        # Reentrant, because the garbage collector may delete a model during a send, and deleting it
        # sends a message, too.
        self._send_lock = threading.RLock()

    def send(self, message: Any, *payload: Buffer) -> None:
        """Sends a JSON message and its payloads atomically; OSError if the connection is closed."""
        self.send_bytes(json.dumps(message, default=array_to_list).encode(), *payload)

    def send_bytes(self, *messages: Buffer) -> None:
        """Sends messages of raw bytes atomically; see `send` for errors."""
        framed = (part for each in messages for part in (LENGTH_PREFIX.pack(len(each)), each))
        data = b"".join(framed)
        with self._send_lock:
            self.connection.sendall(data)

    def receive(self, max_bytes: int | None = None) -> Any:
        """Receives the next message; None if the connection is closed.

        Raises:
            ValueError: the message exceeds `max_bytes` or is not JSON.
        """
        text = self.receive_bytes(max_bytes)
        return None if text is None else json.loads(text)

    def receive_bytes(self, max_bytes: int | None = None) -> bytes | None:
        prefix = self._read(LENGTH_PREFIX.size)
        if prefix is None:
            return None
        [length] = LENGTH_PREFIX.unpack(prefix)
        if max_bytes is not None and length > max_bytes:
            raise ValueError(f"message of {length} bytes exceeds the limit of {max_bytes}")
        return self._read(length)

    def _read(self, size: int) -> bytes | None:
        """Reads exactly `size` bytes; None if the connection closes first."""
        data = bytearray()
        while len(data) < size:
            try:
                chunk = self.connection.recv(min(size - len(data), 2**20))
            except ConnectionError:
                return None
            if not chunk:
                return None
            data += chunk
        return bytes(data)
