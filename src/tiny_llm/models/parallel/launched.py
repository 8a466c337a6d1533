"""Ranks that a launcher has started, on this machine or on several: `mlx.launch`, or `mpirun`.

All of them run the same command. Rank 0 goes on with it, and the others do what rank 0 says. They
first connect MLX's collectives, as the launcher's environment says; over these rank 0 tells an
address, at which every other rank opens connections:

    steps    what rank 0 says
    beats    both sides show that they are alive
    own      closed when the rank ends; rank 1's tells rank 0's lifeline (`lifeline.py`)
    first    closed when rank 0 ends, which tells the rank's lifeline

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
from .connecting import Ranks, bounded
from .group import RankGroup, Worker, share_cores, watch_rank_0
from .messages import Channel

LIFELINE = Path(__file__).with_name("lifeline.py")
USES = ("steps", "beats", "own", "first")
ADDRESS_BYTES = 256
SECONDS_TO_SAY = 2.0  # what a connection that somebody opens is for


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


def _own_host(backend: str) -> str:
    """The name or number by which other machines reach rank 0, which this process is."""
    if backend == "ring":
        return _ring_hosts(os.environ)[0][0].rpartition(":")[0]
    if backend == "jaccl":
        return os.environ["MLX_JACCL_COORDINATOR"].rpartition(":")[0]
    return socket.gethostname()


def _join() -> tuple[str, Ranks]:
    """Connects the collectives: which they are, and the ranks.

    Raises:
        UserError: MLX refuses.
    """
    backend = _backend(os.environ)
    assert backend is not None
    if backend == "mpi":
        _take_cores()
        are_all_here = (
            os.environ["OMPI_COMM_WORLD_SIZE"] == os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"]
        )
        return backend, mpi.join(mpi.ON_ONE_MACHINE if are_all_here else {})
    try:
        return backend, mx.distributed.init(strict=True, backend=backend)
    except RuntimeError as error:
        raise UserError(f"the ranks cannot be connected: {error}.") from error


def _take_cores() -> None:
    """Takes all cores of this machine, if `mpirun` has bound this rank to less than its share.

    It binds each of two ranks to one core, of however many. Threads that start later are bound as
    this one is.
    """
    ranks_here = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))
    cores = os.cpu_count() or 1
    if sys.platform == "linux" and len(os.sched_getaffinity(0)) < cores // ranks_here:
        os.sched_setaffinity(0, range(cores))


def _from_rank_0(ranks: Ranks, text: str = "") -> str:
    """Rank 0's text, on all ranks."""
    own = text.encode().ljust(ADDRESS_BYTES) if ranks.rank() == 0 else bytes(ADDRESS_BYTES)
    total = mx.distributed.all_sum(mx.array(list(own), mx.int32), group=ranks, stream=mx.cpu)
    numbers: list[int] = total.tolist()  # type: ignore[assignment]
    return bytes(numbers).decode().strip()


def _greeting(rank: int, token: str, use: str) -> dict[str, Any]:
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
    with bounded(0):
        backend, ranks = _join()
        host, token = _own_host(backend), os.urandom(16).hex()
        with socket.create_server((host, 0), backlog=len(USES) * ranks.size()) as listening:
            _from_rank_0(ranks, f"{host} {listening.getsockname()[1]} {token}")
            found: dict[tuple[int, str], tuple[socket.socket, dict[str, Any]]] = {}
            while len(found) < len(USES) * (ranks.size() - 1):
                connection, said = _accept(listening)
                if said.get("token") == token:
                    found[said["rank"], said["use"]] = connection, said
                else:
                    connection.close()  # it is no rank
    own = _greeting(0, token, "steps")
    channels = {rank: Channel(found[rank, "steps"][0]) for rank in range(1, ranks.size())}
    machines = {rank: found[rank, "steps"][1]["machine"] for rank in channels}
    machines[0] = own["machine"]
    for rank, channel in channels.items():
        theirs = found[rank, "steps"][1]["versions"]
        if theirs != own["versions"]:
            raise UserError(f"rank {rank} has {theirs}, and rank 0 {own['versions']}; install one.")
        channel.send(list(machines.values()).count(machines[rank]))
    share_cores(list(machines.values()).count(machines[0]))
    beats = {rank: found[rank, "beats"][0] for rank in channels}
    kept = [found[rank, use][0] for rank in channels for use in ("own", "first")]
    return LaunchedGroup(ranks, channels, beats, kept, _lifeline(found[1, "own"][0]))


def _accept(listening: socket.socket) -> tuple[socket.socket, dict[str, Any]]:
    """A connection, and what is said on it first; nothing, if that is no greeting."""
    connection, _ = listening.accept()
    connection.settimeout(SECONDS_TO_SAY)
    said: Any = None
    with suppress(OSError, ValueError):
        said = Channel(connection).receive(longest=4096)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection, said if isinstance(said, dict) else {}


def _lifeline(connection: socket.socket) -> subprocess.Popen[bytes]:
    """Has this process ended when a connection ends, unless it does so by itself."""
    command = [sys.executable, "-I", str(LIFELINE)]
    return subprocess.Popen(command, stdin=connection.fileno(), start_new_session=True)


class LaunchedGroup(RankGroup):
    """Rank 0 of ranks that a launcher has started. See `launched_group`.

    Args:
        ranks, channels, beats: see `RankGroup`.
        kept: connections that this process's end is to close.
        lifeline: the program that ends this process if rank 1 ends before it.
    """

    def __init__(
        self,
        ranks: Ranks,
        channels: Mapping[int, Channel],
        beats: Mapping[int, socket.socket],
        kept: list[socket.socket],
        lifeline: subprocess.Popen[bytes],
    ):
        super().__init__(ranks.size(), channels, beats)
        self.ranks = ranks
        self._kept, self._lifeline = kept, lifeline

    def _kill(self) -> None:
        self._lifeline.kill()  # this process ends, in its own time

    def _wait(self) -> None:
        mpi.leave()  # the others do so as well; if one cannot, the lifeline ends this process
        self._kill()


def launched_worker() -> Worker:
    """The side of the other ranks."""
    rank = int(os.environ.get("MLX_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
    with bounded(rank):
        _, ranks = _join()
        host, port, token = _from_rank_0(ranks).split()
        opened = {}
        for use in USES:
            opened[use] = socket.create_connection((host, int(port)))
            opened[use].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Channel(opened[use]).send(_greeting(rank, token, use))
        channel = Channel(opened["steps"])
        ranks_here = channel.receive()
    if ranks_here is None:
        os._exit(1)  # rank 0 has said why
    share_cores(ranks_here)
    with opened["first"] as first:
        _lifeline(first)
    opened["own"].detach()  # open until this process ends
    return Worker(ranks, channel, watch_rank_0(opened["beats"]), mpi.leave)
