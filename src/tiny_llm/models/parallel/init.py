"""Connection setup for ranks: timeout, environment variables, MLX's ring.

MLX reads its connection settings from the environment and waits indefinitely for the other ranks.
"""

import faulthandler
import json
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import mlx.core as mx

Group = mx.distributed.Group
INIT_TIMEOUT_SECONDS = 8.0
STDERR_FILENO = 2


@contextmanager
def init_timeout() -> Iterator[None]:
    """Exits with status 1 and a traceback if the block exceeds the timeout.

    MLX holds the GIL while it connects, so no Python thread can enforce the timeout. faulthandler
    can, because its timer is a C thread. A process has only one such timer, so the block replaces
    the timer of the server's watchdog.
    """
    faulthandler.dump_traceback_later(INIT_TIMEOUT_SECONDS, exit=True, file=STDERR_FILENO)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def temporary_env(values: Mapping[str, str]) -> Iterator[None]:
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


def free_addresses(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    finally:
        for one in sockets:
            one.close()


def connect_to_other_ranks(rank: int, addresses: Sequence[str]) -> Group:
    """Joins MLX's ring: listens on this rank's address, connects to the next.

    All ranks must call this at about the same time, with one `host:port` per rank in `addresses`. A
    process can join only one ring.

    Raises:
        RuntimeError: an address cannot be used. If other ranks are missing, the process exits; see
            `init_timeout`.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".json") as hosts:
        json.dump([[address] for address in addresses], hosts)
        hosts.flush()
        env = {"MLX_RANK": str(rank), "MLX_HOSTFILE": hosts.name}
        with temporary_env(env), init_timeout():
            return mx.distributed.init(strict=True, backend="ring")
