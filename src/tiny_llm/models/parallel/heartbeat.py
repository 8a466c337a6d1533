"""Heartbeat: terminates the group when a rank dies or hangs.

A collective blocks in MLX until every rank calls it, so a process waiting for a dead rank cannot
detect the loss. A thread in each process sends a byte every second over dedicated sockets and
monitors its peers' bytes. When a socket closes, or is silent for `TIMEOUT_SECONDS`, the thread
terminates the process, the only way to stop another thread blocked in C++. The first heartbeat may
take longer, because importing this package takes seconds on a busy machine.
"""

import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

BEAT = b"\n"
INTERVAL_SECONDS = 1.0
TIMEOUT_SECONDS = 7.0
STARTUP_TIMEOUT_SECONDS = 30.0
MAX_REASON_BYTES = 1000


class Heartbeat:
    """Monitors other ranks in a background thread.

    `on_loss` is called once, in that thread, with the lost rank and the reason ("" if unknown).
    """

    def __init__(
        self,
        connections: Mapping[int, socket.socket],
        on_loss: Callable[[int, str], None],
    ):
        self.stopped = False  # set before a regular shutdown; stops the thread
        self._connections = dict(connections)
        self._on_loss = on_loss
        self._received = dict.fromkeys(connections, b"")
        threading.Thread(target=self._run, name="rank-heartbeat", daemon=True).start()

    def report_failure(self, reason: str) -> None:
        line = " ".join(reason.split()).encode()[:MAX_REASON_BYTES]
        for connection in self._connections.values():
            with suppress(OSError):  # the rank has exited
                connection.sendall(line + BEAT)

    def _run(self) -> None:
        # Seconds since each rank's last heartbeat; negative at first, to allow for a slow startup.
        silent = dict.fromkeys(self._connections, TIMEOUT_SECONDS - STARTUP_TIMEOUT_SECONDS)
        last = time.monotonic()
        next_beat = last
        while not self.stopped:
            sockets = list(self._connections.values())
            readable, _, _ = select.select(sockets, [], [], INTERVAL_SECONDS / 4)
            now = time.monotonic()
            # Capped, because a suspension of this process must not count as the peers' silence.
            elapsed, last = min(now - last, INTERVAL_SECONDS), now
            if now >= next_beat:
                next_beat = now + INTERVAL_SECONDS
                for connection in sockets:
                    _send_beat(connection)
            for rank, connection in self._connections.items():
                silent[rank] = 0.0 if connection in readable else silent[rank] + elapsed
                is_closed = connection in readable and not self._receive(rank, connection)
                if self.stopped:
                    return
                if is_closed or silent[rank] > TIMEOUT_SECONDS:
                    lines = self._received[rank].split(BEAT)
                    reason = lines[-2:][0].decode(errors="replace").strip()
                    hung = "" if is_closed else f"no heartbeat for {TIMEOUT_SECONDS:.0f} seconds"
                    self._on_loss(rank, reason or hung)
                    return

    def _receive(self, rank: int, connection: socket.socket) -> bool:
        try:
            data = connection.recv(4096)
        except OSError:
            return False
        if data.strip():
            self._received[rank] += data
        return bool(data)


def _send_beat(connection: socket.socket) -> None:
    """Sends a heartbeat without blocking; drops it if the peer does not read."""
    with suppress(OSError):  # the next read detects a closed connection
        connection.send(BEAT, socket.MSG_DONTWAIT)
