"""Beats between the ranks: a rank that is gone or silent is noticed, and ends all of them.

An exchange blocks in MLX until every rank takes part in it, so a process that waits for a dead one
cannot notice by itself. Each process has a thread that sends a byte every second over a socket of
its own, and listens. If a socket ends, or says nothing for `TIMEOUT_SECONDS`, the thread ends the
process: nothing else can end a thread that waits in C++. Its first word may take longer, because a
process that starts on a busy machine imports this package for seconds.
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
MAX_REASON_BYTES = 1000  # bytes


class Heartbeat:
    """Watches the other ranks from a thread of its own.

    Args:
        connections: a stream socket to each rank that is watched, by its number.
        on_loss: called once, in the thread, with the rank and what is known: "" if it is gone
            without a word, else a reason.

    Attributes:
        stopped: set it before the ranks end as they should.
    """

    def __init__(
        self,
        connections: Mapping[int, socket.socket],
        on_loss: Callable[[int, str], None],
    ):
        self.stopped = False
        self._connections = dict(connections)
        self._on_loss = on_loss
        self._received = dict.fromkeys(connections, b"")
        threading.Thread(target=self._run, name="rank-heartbeat", daemon=True).start()

    def report_failure(self, reason: str) -> None:
        """Tells the other ranks why this one is about to end."""
        line = " ".join(reason.split()).encode()[:MAX_REASON_BYTES]
        for connection in self._connections.values():
            with suppress(OSError):  # it is gone, and will not miss it
                connection.sendall(line + BEAT)

    def _run(self) -> None:
        silent = dict.fromkeys(self._connections, TIMEOUT_SECONDS - STARTUP_TIMEOUT_SECONDS)
        last = time.monotonic()
        next_beat = last
        while not self.stopped:
            sockets = list(self._connections.values())
            readable, _, _ = select.select(sockets, [], [], INTERVAL_SECONDS / 4)
            now = time.monotonic()
            # After this process itself was stopped, others are not to blame for the time.
            passed, last = min(now - last, INTERVAL_SECONDS), now
            if now >= next_beat:
                next_beat = now + INTERVAL_SECONDS
                for connection in sockets:
                    _send_beat(connection)
            for rank, connection in self._connections.items():
                silent[rank] = 0.0 if connection in readable else silent[rank] + passed
                is_gone = connection in readable and not self._receive(rank, connection)
                if self.stopped:
                    return
                if is_gone or silent[rank] > TIMEOUT_SECONDS:
                    said = self._received[rank].split(BEAT)[-2:][0].decode(errors="replace").strip()
                    hung = "" if is_gone else f"it said nothing for {TIMEOUT_SECONDS:.0f} seconds"
                    self._on_loss(rank, said or hung)
                    return

    def _receive(self, rank: int, connection: socket.socket) -> bool:
        """Reads what has come; False if the rank is gone."""
        try:
            data = connection.recv(4096)
        except OSError:
            return False
        if data.strip():
            self._received[rank] += data
        return bool(data)


def _send_beat(connection: socket.socket) -> None:
    """A beat, unless the other side reads nothing: then its silence is noticed."""
    with suppress(OSError):  # reading finds out
        connection.send(BEAT, socket.MSG_DONTWAIT)
