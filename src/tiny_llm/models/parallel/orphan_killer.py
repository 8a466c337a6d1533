"""A program: ends its parent when another rank is gone and the parent does not end by itself.

A rank that is stopped cannot end, and the others may be on another machine. It imports nothing but
the standard library.

    python orphan_killer.py     its standard input is a connection to the other rank, which says
    nothing
"""

import os
import select
import signal
import sys
import time

SECONDS_TO_END = 1.0


def main() -> None:
    """Waits until the connection ends, or the parent has."""
    parent = os.getppid()
    while os.getppid() == parent:
        ended, _, _ = select.select([sys.stdin], [], [], 1.0)
        if ended:
            time.sleep(SECONDS_TO_END)
            if os.getppid() == parent:
                os.kill(parent, signal.SIGKILL)
            return


if __name__ == "__main__":
    main()
