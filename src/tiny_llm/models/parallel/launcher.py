"""Ranks started by `mlx.launch` or `mpirun`, on one or several machines.

All ranks run the same command line; rank 0 executes the command and the workers serve rank 0. MLX's
collectives connect as configured by the launcher's environment. Rank 0 then broadcasts an address,
to which every worker opens four connections:

    steps           rank 0's commands
    heartbeat       heartbeats in both directions
    rank_alive      closes when the worker exits; rank 1's triggers rank 0's `orphan_killer.py`
    rank_0_alive    closes when rank 0 exits, which triggers the worker's `orphan_killer.py`

Nothing is encrypted, so the network between the machines must be private.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...errors import UserError
from . import mpi
from .channel import Channel
from .group import RankGroup, Worker, divide_threads, monitor_rank_0
from .init import Group, init_timeout

ORPHAN_KILLER = Path(__file__).with_name("orphan_killer.py")
CHANNEL_NAMES = ("steps", "heartbeat", "rank_alive", "rank_0_alive")
MAX_ADDRESS_BYTES = 256
MAX_HANDSHAKE_BYTES = 4096
HANDSHAKE_TIMEOUT_SECONDS = 2.0


def is_launched() -> bool:
    return _backend() is not None


def is_rank_0() -> bool:
    """Whether this process is rank 0; True without a launcher."""
    names = ("MLX_RANK", "OMPI_COMM_WORLD_RANK")
    return all(os.environ.get(name, "0") == "0" for name in names)


def _backend() -> str | None:
    """MLX backend of the launcher; None without a launcher or for one rank."""
    env = os.environ
    if "MLX_RANK" in env and "MLX_HOSTFILE" in env:
        return "ring" if len(_ring_hosts()) > 1 else None
    if "MLX_RANK" in env and "MLX_IBV_DEVICES" in env:
        return "jaccl"
    return "mpi" if int(env.get("OMPI_COMM_WORLD_SIZE", "1")) > 1 else None


def _ring_hosts() -> list[list[str]]:
    """Each rank's addresses from the host file, which is empty for a single rank."""
    file = os.environ["MLX_HOSTFILE"]
    try:
        text = Path(file).read_text().strip()
        hosts: list[list[str]] = json.loads(text) if text else []
    except (OSError, ValueError) as error:
        raise UserError(
            f"MLX_HOSTFILE is {file}, which cannot be read: {error}; unset it, or start the ranks "
            "with mlx.launch."
        ) from error
    return hosts


def _rank_0_host() -> str:
    backend = _backend()
    if backend == "ring":
        return _ring_hosts()[0][0].rpartition(":")[0]
    if backend == "jaccl":
        return os.environ["MLX_JACCL_COORDINATOR"].rpartition(":")[0]
    return socket.gethostname()


def init_comm() -> Group:
    """Connects MLX's collectives using the launcher's backend; UserError on failure."""
    backend = _backend()
    assert backend is not None
    if backend == "mpi":
        _widen_affinity()
        is_single_host = (
            os.environ["OMPI_COMM_WORLD_SIZE"] == os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"]
        )
        return mpi.init(mpi.SINGLE_HOST_ENV if is_single_host else {})
    try:
        return mx.distributed.init(strict=True, backend=backend)
    except RuntimeError as error:
        raise UserError(f"the ranks cannot be connected: {error}.") from error


def _widen_affinity() -> None:
    """Removes `mpirun`'s CPU binding if it is narrower than this rank's share.

    With two ranks, `mpirun` by default binds each rank, and thus its threads, to a single core.
    """
    ranks_here = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))
    cores = os.cpu_count() or 1
    if sys.platform == "linux" and len(os.sched_getaffinity(0)) < cores // ranks_here:
        os.sched_setaffinity(0, range(cores))


def _broadcast_text(comm: Group, text: str = "") -> str:
    data = text.encode().ljust(MAX_ADDRESS_BYTES) if comm.rank() == 0 else bytes(MAX_ADDRESS_BYTES)
    total = mx.distributed.all_sum(mx.array(list(data), mx.int32), group=comm, stream=mx.cpu)
    received: list[int] = total.tolist()  # type: ignore[assignment]
    return bytes(received).decode().strip()


def _handshake(rank: int, token: str, channel_name: str) -> dict[str, Any]:
    from importlib.metadata import version  # imported only with a launcher, to save a megabyte

    versions = f"tiny-llm {version('tiny-llm')}, mlx {version('mlx')}"
    common = {"machine": socket.gethostname(), "versions": versions}
    return {"rank": rank, "token": token, "channel": channel_name, **common}


def launched_group() -> RankGroup:
    """Connects rank 0 while every worker calls `launched_worker`; UserError on failure."""
    with init_timeout():
        comm = init_comm()
        host, token = _rank_0_host(), os.urandom(16).hex()
        num_connections = len(CHANNEL_NAMES) * (comm.size() - 1)
        with socket.create_server((host, 0), backlog=num_connections) as server:
            _broadcast_text(comm, f"{host} {server.getsockname()[1]} {token}")
            accepted: dict[tuple[int, str], tuple[socket.socket, dict[str, Any]]] = {}
            while len(accepted) < num_connections:
                connection, hello = _accept(server)
                if hello.get("token") == token:
                    accepted[hello["rank"], hello["channel"]] = connection, hello
                else:
                    connection.close()  # not a rank
    hello_0 = _handshake(0, token, "steps")
    channels = {rank: Channel(accepted[rank, "steps"][0]) for rank in range(1, comm.size())}
    machines = {rank: accepted[rank, "steps"][1]["machine"] for rank in channels}
    machines[0] = hello_0["machine"]
    for rank, channel in channels.items():
        versions = accepted[rank, "steps"][1]["versions"]
        if versions != hello_0["versions"]:
            raise UserError(
                f"rank {rank} has {versions}, but rank 0 has {hello_0['versions']}; install the "
                "same versions on all ranks."
            )
        channel.send(list(machines.values()).count(machines[rank]))
    divide_threads(list(machines.values()).count(machines[0]))
    heartbeats = {rank: accepted[rank, "heartbeat"][0] for rank in channels}
    open_sockets = [
        accepted[rank, name][0] for rank in channels for name in ("rank_alive", "rank_0_alive")
    ]
    return LaunchedGroup(
        comm, channels, heartbeats, open_sockets, _start_orphan_killer(accepted[1, "rank_alive"][0])
    )


def _accept(server: socket.socket) -> tuple[socket.socket, dict[str, Any]]:
    connection, _ = server.accept()
    connection.settimeout(HANDSHAKE_TIMEOUT_SECONDS)
    hello: Any = None
    with suppress(OSError, ValueError):
        hello = Channel(connection).receive(max_bytes=MAX_HANDSHAKE_BYTES)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection, hello if isinstance(hello, dict) else {}


def _start_orphan_killer(connection: socket.socket) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", str(ORPHAN_KILLER)]
    return subprocess.Popen(command, stdin=connection.fileno(), start_new_session=True)


class LaunchedGroup(RankGroup):
    """Rank 0 and the workers started by a launcher; see `launched_group`."""

    def __init__(
        self,
        comm: Group,
        channels: Mapping[int, Channel],
        heartbeats: Mapping[int, socket.socket],
        open_sockets: list[socket.socket],
        orphan_killer: subprocess.Popen[bytes],
    ):
        super().__init__(comm.size(), channels, heartbeats)
        self.comm = comm
        self._open_sockets = open_sockets  # stay open until this process exits
        self._orphan_killer = orphan_killer  # kills this process if rank 1 exits first

    def _kill_child_processes(self) -> None:
        # Each worker's own orphan killer ends the worker when this process exits.
        self._orphan_killer.kill()

    def _wait_for_exit(self) -> None:
        mpi.finalize()  # blocks until all ranks call it, or the orphan killer kills this process
        self._kill_child_processes()


def launched_worker() -> Worker:
    rank = int(os.environ.get("MLX_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
    with init_timeout():
        comm = init_comm()
        host, port, token = _broadcast_text(comm).split()
        connections = {}
        for name in CHANNEL_NAMES:
            connections[name] = socket.create_connection((host, int(port)))
            connections[name].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Channel(connections[name]).send(_handshake(rank, token, name))
        channel = Channel(connections["steps"])
        num_local_ranks = channel.receive()
    if num_local_ranks is None:
        os._exit(1)  # rank 0 has printed the reason
    divide_threads(num_local_ranks)
    with connections["rank_0_alive"] as connection:
        _start_orphan_killer(connection)
    connections["rank_alive"].detach()  # stays open until this process exits
    return Worker(comm, channel, monitor_rank_0(connections["heartbeat"]))
