"""What connecting needs, over MPI as over the ring: a bound of time, and variables.

MLX connects by what it finds in the environment, and waits for other ranks without end.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx

Group = mx.distributed.Group
INIT_WATCHDOG = Path(__file__).with_name("init_watchdog.py")
INIT_TIMEOUT_SECONDS = 8.0


@contextmanager
def init_timeout(rank: int, others: Sequence[socket.socket] = ()) -> Iterator[None]:
    """Ends this process with a sentence if what is inside takes longer than `INIT_TIMEOUT_SECONDS`.

    Args:
        rank: this process's number.
        others: connections to other ranks; the process ends as well if one of them does.
    """
    late = (
        f"tiny-llm: rank {rank} could not connect to the other ranks within "
        f"{INIT_TIMEOUT_SECONDS:.0f} seconds, and ends."
    )
    lost = f"tiny-llm: rank {rank} lost another rank while it connected, and ends."
    fds = [one.fileno() for one in others]
    guard = subprocess.Popen(
        [
            sys.executable,
            "-I",
            str(INIT_WATCHDOG),
            str(INIT_TIMEOUT_SECONDS),
            late,
            lost,
            *map(str, fds),
        ],
        stdin=subprocess.PIPE,
        pass_fds=fds,
    )
    try:
        yield
    finally:
        guard.communicate()  # ends its input


@contextmanager
def temporary_env(values: Mapping[str, str]) -> Iterator[None]:
    """Variables of the environment that are set within, and are as before afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
