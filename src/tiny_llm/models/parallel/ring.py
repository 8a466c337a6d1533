"""Connecting MLX's ring: every rank listens at an address, and connects to the next one's."""

import json
import socket
import tempfile
from collections.abc import Sequence

import mlx.core as mx

from .init import Group, init_timeout, temporary_env


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


def connect(rank: int, addresses: Sequence[str], others: Sequence[socket.socket] = ()) -> Group:
    """This process's place in the ring. All ranks call it at about the same time.

    MLX has one ring in the life of a process.

    Args:
        rank: this process's number.
        addresses: of all ranks.
        others: see `init_timeout`.

    Raises:
        RuntimeError: an address cannot be used. If the other ranks do not come, the process ends
            with a sentence after `INIT_TIMEOUT_SECONDS`.
    """
    with init_timeout(rank, others), tempfile.NamedTemporaryFile("w", suffix=".json") as hosts:
        json.dump([[address] for address in addresses], hosts)
        hosts.flush()
        with temporary_env({"MLX_RANK": str(rank), "MLX_HOSTFILE": hosts.name}):
            return mx.distributed.init(strict=True, backend="ring")
