"""Program that kills its parent if another rank is gone and the parent does not exit.

A stopped rank cannot exit, and the others may be on another machine. Standard library only.

    python orphan_killer.py     standard input: an idle connection to the other rank
"""

import os
import select
import signal
import sys
import time

GRACE_SECONDS = 1.0


def main() -> None:
    """Waits until the connection closes or the parent exits."""
    parent = os.getppid()
    while os.getppid() == parent:
        closed, _, _ = select.select([sys.stdin], [], [], 1.0)
        if closed:
            time.sleep(GRACE_SECONDS)
            if os.getppid() == parent:
                os.kill(parent, signal.SIGKILL)
            return


if __name__ == "__main__":
    main()
