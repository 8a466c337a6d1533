"""Connecting MLX's ring: every rank listens at an address, and connects to the next one's."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx

Ring = mx.distributed.Group
GUARD = Path(__file__).with_name("guard.py")
SECONDS_TO_CONNECT = 8.0


def free_addresses(count: int) -> list[str]:
    """So many addresses of this machine's own interface at which nothing listens."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    finally:
        for one in sockets:
            one.close()


@contextmanager
def bounded(rank: int, others: Sequence[socket.socket] = ()) -> Iterator[None]:
    """Ends this process with a sentence if what is inside takes longer than `SECONDS_TO_CONNECT`.

    Args:
        rank: this process's number.
        others: connections to other ranks; the process ends as well if one of them does.
    """
    late = (
        f"tiny-llm: rank {rank} could not connect to the other ranks within "
        f"{SECONDS_TO_CONNECT:.0f} seconds, and ends."
    )
    lost = f"tiny-llm: rank {rank} lost another rank while it connected, and ends."
    fds = [one.fileno() for one in others]
    guard = subprocess.Popen(
        [sys.executable, "-I", str(GUARD), str(SECONDS_TO_CONNECT), late, lost, *map(str, fds)],
        stdin=subprocess.PIPE,
        pass_fds=fds,
    )
    try:
        yield
    finally:
        guard.communicate()  # ends its input


def connect(rank: int, addresses: Sequence[str], others: Sequence[socket.socket] = ()) -> Ring:
    """This process's place in the ring. All ranks call it at about the same time.

    MLX has one ring in the life of a process.

    Args:
        rank: this process's number.
        addresses: of all ranks.
        others: see `bounded`.

    Raises:
        RuntimeError: an address cannot be used. If the other ranks do not come, the process ends
            with a sentence after `SECONDS_TO_CONNECT`.
    """
    with bounded(rank, others), tempfile.NamedTemporaryFile("w", suffix=".json") as hosts:
        json.dump([[address] for address in addresses], hosts)
        hosts.flush()
        with variables({"MLX_RANK": str(rank), "MLX_HOSTFILE": hosts.name}):
            return mx.distributed.init(strict=True, backend="ring")


@contextmanager
def variables(own: Mapping[str, str]) -> Iterator[None]:
    """Variables of the environment that are set within, and are as before afterwards."""
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
