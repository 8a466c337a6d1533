"""A program: ends its parent with a sentence if that does not say in time that it goes on.

MLX's ring waits for its neighbours without end and without letting another thread of Python run, so
the time it may take is bounded from outside, and a rank that is lost meanwhile is noticed there. It
imports nothing but the standard library.

    python init_watchdog.py SECONDS LATE LOST SOCKETS…

Its standard input ends when there is no more to guard. It prints LATE when the time has passed, and
LOST when one of the sockets, which it inherits by their numbers, is closed by the other side.
"""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence


def wait(seconds: float, sockets: Sequence[socket.socket]) -> int | None:
    """Waits for the end of standard input.

    Returns:
        None after that; otherwise which sentence is true: 0 if it is late, 1 if a rank is lost.
    """
    deadline = time.monotonic() + seconds
    waited: list[socket.socket] = list(sockets)
    while (left := deadline - time.monotonic()) > 0:
        stdin = sys.stdin.fileno()
        ready, _, _ = select.select([stdin, *(one.fileno() for one in waited)], [], [], left)
        if stdin in ready:
            return None
        for one in [one for one in waited if one.fileno() in ready]:
            try:
                if not one.recv(1, socket.MSG_PEEK):
                    return 1
            except ConnectionError:
                return 1
            waited.remove(one)  # it says something, so it is connected
    return 0


def main() -> None:
    """Waits, and ends the parent if something went wrong."""
    parent = os.getppid()
    seconds, *sentences = sys.argv[1:4]
    wrong = wait(float(seconds), [socket.socket(fileno=int(fd)) for fd in sys.argv[4:]])
    if wrong is not None and os.getppid() == parent:
        print(sentences[wrong], file=sys.stderr, flush=True)
        os.kill(parent, signal.SIGKILL)


if __name__ == "__main__":
    main()
