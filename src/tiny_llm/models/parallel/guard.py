"""A program: ends its parent with a sentence if that does not say in time that it goes on.

MLX's ring waits for its neighbours without end and without letting another thread of Python run, so
the time it may take is bounded from outside. It imports nothing but the standard library.

    python guard.py SECONDS SENTENCE     its standard input ends when there is no more to guard
"""

import os
import select
import signal
import sys


def main() -> None:
    """Waits for the end of standard input, or for the time to pass."""
    parent = os.getppid()
    ended, _, _ = select.select([sys.stdin], [], [], float(sys.argv[1]))
    if not ended and os.getppid() == parent:
        print(sys.argv[2], file=sys.stderr, flush=True)
        os.kill(parent, signal.SIGKILL)


if __name__ == "__main__":
    main()
