"""A program: tells rank 0 what `mpirun` says to a process in this place, and keeps the place.

    mpirun -n 2 python rank_slot.py FOLDER

FOLDER has the socket at which rank 0 listens. The program goes on until rank 0 has ended, or
`mpirun` ends it, and then removes the folder. It imports nothing but the standard library.
"""

import json
import os
import shutil
import signal
import socket
import sys
from contextlib import suppress

SOCKET = "places"


def main() -> None:
    """Tells, and waits."""
    folder = sys.argv[1]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as rank_0:
            rank_0.connect(os.path.join(folder, SOCKET))
            rank_0.sendall(json.dumps(dict(os.environ)).encode() + b"\n")
            rank_0.recv(1)  # it says nothing; so this returns when rank 0 is gone
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
