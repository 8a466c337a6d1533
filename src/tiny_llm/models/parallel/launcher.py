"""Ranks that a launcher has started, on this machine or on several: `mlx.launch`, or `mpirun`.

All of them run the same command. Rank 0 goes on with it, and the others do what rank 0 says. They
first connect MLX's collectives, as the launcher's environment says; over these rank 0 tells an
address, at which every other rank opens connections:

    steps    what rank 0 says
    heartbeat     both sides show that they are alive
    rank_alive    closed when the rank ends; rank 1's tells rank 0's orphan killer
    (`orphan_killer.py`) rank_0_alive  closed when rank 0 ends, which tells the rank's orphan killer

What is said is not encrypted: the network between the machines must be private.
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
HANDSHAKE_TIMEOUT_SECONDS = 2.0  # what a connection that somebody opens is for


def is_launched() -> bool:
    """Whether a launcher has started this process as one of several."""
    return _backend(os.environ) is not None


def is_rank_0() -> bool:
    """Whether this is the process that goes on with the command. See `is_launched`."""
    names = ("MLX_RANK", "OMPI_COMM_WORLD_RANK")
    return all(os.environ.get(name, "0") == "0" for name in names)


def _backend(env: Mapping[str, str]) -> str | None:
    """The collectives that a launcher has prepared; None if there is none, or one rank alone."""
    if "MLX_RANK" in env and "MLX_HOSTFILE" in env:
        return "ring" if len(_ring_hosts(env)) > 1 else None
    if "MLX_RANK" in env and "MLX_IBV_DEVICES" in env:
        return "jaccl"
    return "mpi" if int(env.get("OMPI_COMM_WORLD_SIZE", "1")) > 1 else None


def _ring_hosts(env: Mapping[str, str]) -> list[list[str]]:
    """The addresses of each rank, as `mlx.launch` has written them; none for one rank alone.

    Raises:
        UserError: the file is missing or malformed.
    """
    try:
        text = Path(env["MLX_HOSTFILE"]).read_text().strip()
        hosts: list[list[str]] = json.loads(text) if text else []
    except (OSError, ValueError) as error:
        raise UserError(
            f"MLX_HOSTFILE is {env['MLX_HOSTFILE']}, which cannot be read ({error}); unset it, or "
            "start the ranks with mlx.launch."
        ) from error
    return hosts


def _rank_0_host(backend: str) -> str:
    """The name or number by which other machines reach rank 0, which this process is."""
    if backend == "ring":
        return _ring_hosts(os.environ)[0][0].rpartition(":")[0]
    if backend == "jaccl":
        return os.environ["MLX_JACCL_COORDINATOR"].rpartition(":")[0]
    return socket.gethostname()


def _init_comm() -> tuple[str, Group]:
    """Connects the collectives: which they are, and the ranks.

    Raises:
        UserError: MLX refuses.
    """
    backend = _backend(os.environ)
    assert backend is not None
    if backend == "mpi":
        _widen_affinity()
        are_all_here = (
            os.environ["OMPI_COMM_WORLD_SIZE"] == os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"]
        )
        return backend, mpi.init(mpi.SINGLE_HOST_ENV if are_all_here else {})
    try:
        return backend, mx.distributed.init(strict=True, backend=backend)
    except RuntimeError as error:
        raise UserError(f"the ranks cannot be connected: {error}.") from error


def _widen_affinity() -> None:
    """Takes all cores of this machine, if `mpirun` has bound this rank to less than its share.

    It binds each of two ranks to one core, of however many. Threads that start later are bound as
    this one is.
    """
    ranks_here = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))
    cores = os.cpu_count() or 1
    if sys.platform == "linux" and len(os.sched_getaffinity(0)) < cores // ranks_here:
        os.sched_setaffinity(0, range(cores))


def _broadcast_text(comm: Group, text: str = "") -> str:
    """Rank 0's text, on all ranks."""
    own = text.encode().ljust(MAX_ADDRESS_BYTES) if comm.rank() == 0 else bytes(MAX_ADDRESS_BYTES)
    total = mx.distributed.all_sum(mx.array(list(own), mx.int32), group=comm, stream=mx.cpu)
    numbers: list[int] = total.tolist()  # type: ignore[assignment]
    return bytes(numbers).decode().strip()


def _handshake(rank: int, token: str, use: str) -> dict[str, Any]:
    """What a rank says of itself on a new connection."""
    from importlib.metadata import version  # of which LLM needs nothing

    versions = f"tiny-llm {version('tiny-llm')}, mlx {version('mlx')}"
    common = {"machine": socket.gethostname(), "versions": versions}
    return {"rank": rank, "token": token, "use": use, **common}


def launched_group() -> RankGroup:
    """Rank 0's side. Every other rank calls `launched_worker`.

    Raises:
        UserError: they cannot be connected, or run another version.
    """
    with init_timeout(0):
        backend, comm = _init_comm()
        host, token = _rank_0_host(backend), os.urandom(16).hex()
        with socket.create_server((host, 0), backlog=len(CHANNEL_NAMES) * comm.size()) as listening:
            _broadcast_text(comm, f"{host} {listening.getsockname()[1]} {token}")
            found: dict[tuple[int, str], tuple[socket.socket, dict[str, Any]]] = {}
            while len(found) < len(CHANNEL_NAMES) * (comm.size() - 1):
                connection, said = _accept(listening)
                if said.get("token") == token:
                    found[said["rank"], said["use"]] = connection, said
                else:
                    connection.close()  # it is no rank
    own = _handshake(0, token, "steps")
    channels = {rank: Channel(found[rank, "steps"][0]) for rank in range(1, comm.size())}
    machines = {rank: found[rank, "steps"][1]["machine"] for rank in channels}
    machines[0] = own["machine"]
    for rank, channel in channels.items():
        theirs = found[rank, "steps"][1]["versions"]
        if theirs != own["versions"]:
            raise UserError(f"rank {rank} has {theirs}, and rank 0 {own['versions']}; install one.")
        channel.send(list(machines.values()).count(machines[rank]))
    divide_threads(list(machines.values()).count(machines[0]))
    beats = {rank: found[rank, "heartbeat"][0] for rank in channels}
    open_sockets = [
        found[rank, use][0] for rank in channels for use in ("rank_alive", "rank_0_alive")
    ]
    return LaunchedGroup(
        comm, channels, beats, open_sockets, _start_orphan_killer(found[1, "rank_alive"][0])
    )


def _accept(listening: socket.socket) -> tuple[socket.socket, dict[str, Any]]:
    """A connection, and what is said on it first; nothing, if that is no greeting."""
    connection, _ = listening.accept()
    connection.settimeout(HANDSHAKE_TIMEOUT_SECONDS)
    said: Any = None
    with suppress(OSError, ValueError):
        said = Channel(connection).receive(max_bytes=4096)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection, said if isinstance(said, dict) else {}


def _start_orphan_killer(connection: socket.socket) -> subprocess.Popen[bytes]:
    """Has this process ended when a connection ends, unless it does so by itself."""
    command = [sys.executable, "-I", str(ORPHAN_KILLER)]
    return subprocess.Popen(command, stdin=connection.fileno(), start_new_session=True)


class LaunchedGroup(RankGroup):
    """Rank 0 of ranks that a launcher has started. See `launched_group`.

    Args:
        comm, channels, beats: see `RankGroup`.
        open_sockets: connections that this process's end is to close.
        orphan_killer: the program that ends this process if rank 1 ends before it.
    """

    def __init__(
        self,
        comm: Group,
        channels: Mapping[int, Channel],
        beats: Mapping[int, socket.socket],
        open_sockets: list[socket.socket],
        orphan_killer: subprocess.Popen[bytes],
    ):
        super().__init__(comm.size(), channels, beats)
        self.comm = comm
        self._open_sockets, self._orphan_killer = open_sockets, orphan_killer

    def _kill(self) -> None:
        self._orphan_killer.kill()  # this process ends, in its own time

    def _wait_for_exit(self) -> None:
        # the others do so as well; if one cannot, the orphan killer ends this process
        mpi.finalize()
        self._kill()


def launched_worker() -> Worker:
    """The side of the other ranks."""
    rank = int(os.environ.get("MLX_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
    with init_timeout(rank):
        _, comm = _init_comm()
        host, port, token = _broadcast_text(comm).split()
        opened = {}
        for use in CHANNEL_NAMES:
            opened[use] = socket.create_connection((host, int(port)))
            opened[use].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Channel(opened[use]).send(_handshake(rank, token, use))
        channel = Channel(opened["steps"])
        ranks_here = channel.receive()
    if ranks_here is None:
        os._exit(1)  # rank 0 has said why
    divide_threads(ranks_here)
    with opened["rank_0_alive"] as first:
        _start_orphan_killer(first)
    opened["rank_alive"].detach()  # open until this process ends
    return Worker(comm, channel, monitor_rank_0(opened["heartbeat"]), mpi.finalize)
