"""Program that kills its parent if the parent outlives another rank.

It is needed because a suspended rank cannot exit, and ranks on other machines cannot kill it. This
program uses only the standard library.

    python orphan_killer.py     standard input: an idle connection to the other rank
"""

import os
import select
import signal
import sys
import time

GRACE_SECONDS = 1.0


def main() -> None:
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
