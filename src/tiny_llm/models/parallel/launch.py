"""Starts the ranks: spawns workers, or joins ranks launched by `mlx.launch` or `mpirun`.

Launched ranks all run the same command line. Traffic is unencrypted and trusted: use a private
network.
"""

import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import mlx.core as mx

from ...errors import UserError
from . import mpi
from .group import RankGroup, gather_text

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LAUNCH_TIMEOUT_SECONDS = 60.0  # includes imports on other machines; a launcher ends failed ranks
RING_TIMEOUT_SECONDS = 8.0  # for spawned ranks, after all imports
# A machine that does not respond for 8 seconds is lost. Its kernel responds for a paused process.
TCP_OPTIONS = {
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": 2,
    "TCP_KEEPALIVE": 2,  # macOS's name of TCP_KEEPIDLE
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 8000,  # ms, for unacknowledged data
}
# Program of a spawned worker; its standard input is the socket to rank 0.
WORKER_PROGRAM = "from tiny_llm.models.parallel import launch; launch.run_spawned_worker()"

_group: RankGroup | None = None
_lock = threading.Lock()


def get_group(size: int) -> RankGroup:
    """Returns this process's group, which all models share; the first call starts it.

    Raises:
        UserError: the existing group has a different size.
    """
    global _group
    with _lock:
        if _group is None:
            join_launched_ranks()
        _group = _group or _spawn_group(size)
    if _group.size != size:
        raise UserError(
            f"tensor_parallel_size is {size}, but this process already has a group of "
            f"{_group.size} ranks; use {_group.size}, or start another process."
        )
    return _group


def current_group() -> RankGroup:
    assert _group is not None
    return _group


def end_group() -> None:
    """Shuts down the workers; required before `os._exit`, which skips exit handlers."""
    if _group is not None:
        _group.end()


# ---------------------------------------------------------------- launched ranks


def num_launched_ranks() -> int:
    """Number of launched ranks; 1 without a launcher or before `join_launched_ranks`."""
    return _group.size if _group is not None and launcher_backend() is not None else 1


def launcher_backend() -> str | None:
    """MLX backend of the launcher; None without a launcher or for one rank."""
    env = os.environ
    if "MLX_RANK" in env and "MLX_IBV_DEVICES" in env:
        return "jaccl"
    if "MLX_RANK" in env and "MLX_HOSTFILE" in env:
        return "ring" if Path(env["MLX_HOSTFILE"]).stat().st_size else None
    return "mpi" if int(env.get("OMPI_COMM_WORLD_SIZE", "1")) > 1 else None


def join_launched_ranks() -> None:
    """Joins the group if a launcher started this process; never returns on workers.

    Raises:
        UserError: the ranks cannot be connected, or their versions differ.
    """
    backend = None
    try:
        backend = launcher_backend()
        if backend is None:
            return
        comm = init_distributed(backend, LAUNCH_TIMEOUT_SECONDS)
        machines = _check_versions(comm)
        connections = _connect(comm, backend)
    except (OSError, RuntimeError) as error:
        hint = "; set MLX_MPI_LIBNAME to the path of mpirun's library" if backend == "mpi" else ""
        raise UserError(f"the ranks cannot be connected: {error}{hint}.") from error
    _divide_threads(machines.count(machines[comm.rank()]))
    global _group
    _group = RankGroup(comm, connections)
    if _group.rank > 0:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # only rank 0 handles these signals
        _group.serve()


def _check_versions(comm: mpi.Group) -> list[str]:
    """Returns the ranks' machines; raises a `UserError` if their versions differ."""
    from importlib.metadata import version  # imported only with a launcher, to save a megabyte

    own = f"{socket.gethostname()}\ntiny-llm {version('tiny-llm')}, mlx {version('mlx')}"
    machines, versions = zip(*(text.split("\n") for text in gather_text(own, comm)), strict=True)
    for rank, other in enumerate(versions):
        if other != versions[0]:
            raise UserError(
                f"rank {rank} has {other}, but rank 0 has {versions[0]}; install the same versions "
                "on all ranks."
            )
    return list(machines)


def _connect(comm: mpi.Group, backend: str) -> list["Connection"]:
    """Returns rank 0's connections to the workers, in rank order, or a worker's to rank 0."""
    from multiprocessing import AuthenticationError
    from multiprocessing.connection import Client, Listener

    if comm.rank() == 0:
        host, key = _rank_0_host(backend), os.urandom(16)
        # On Debian, the host name resolves to 127.0.1.1, which other machines cannot reach.
        interface = "" if host == socket.gethostname() else host
        with Listener((interface, 0), backlog=comm.size(), authkey=key) as listener:
            gather_text(f"{host}\n{listener.address[1]}\n{key.hex()}", comm)
            accepted: dict[int, Connection] = {}
            while len(accepted) < comm.size() - 1:
                with suppress(AuthenticationError, EOFError, OSError):  # not a rank
                    connection = listener.accept()
                    accepted[connection.recv()] = connection
        connections = [accepted[rank] for rank in range(1, comm.size())]
    else:
        host, port, text = gather_text("", comm)[0].split("\n")
        connections = [Client((host, int(port)), authkey=bytes.fromhex(text))]
        connections[0].send(comm.rank())
    for connection in connections:
        with socket.socket(fileno=os.dup(connection.fileno())) as tcp:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in TCP_OPTIONS.items():
                if hasattr(socket, name):
                    tcp.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connections


def _rank_0_host(backend: str) -> str:
    env = os.environ
    if backend == "mpi":
        is_local = env["OMPI_COMM_WORLD_LOCAL_SIZE"] == env["OMPI_COMM_WORLD_SIZE"]
        return "127.0.0.1" if is_local else socket.gethostname()
    address = env.get("MLX_JACCL_COORDINATOR", "")
    if backend == "ring":
        address = json.loads(Path(env["MLX_HOSTFILE"]).read_text())[0][0]
    return address.rpartition(":")[0]


def init_distributed(backend: str, timeout: float) -> mpi.Group:
    """Initializes `mx.distributed` on all ranks.

    After `timeout` seconds, the process exits with status 1 and a traceback. MLX blocks until all
    ranks have joined and holds the GIL, so only a C thread, faulthandler's timer, can do this. It
    replaces the timer of the server's watchdog, which rearms it every second.

    Raises:
        RuntimeError: an address cannot be used, or MPI cannot be loaded.
    """
    if backend == "mpi":
        mpi.configure()
    faulthandler.dump_traceback_later(timeout, exit=True, file=2)
    try:
        comm = mx.distributed.init(strict=True, backend=backend)
    finally:
        faulthandler.cancel_dump_traceback_later()
    if backend == "mpi":
        mpi.register(comm)
    return comm


# ---------------------------------------------------------------- spawned ranks


def _spawn_group(size: int) -> RankGroup:
    """Spawns workers and joins them in an MLX ring on the loopback interface."""
    from multiprocessing.connection import Pipe

    _divide_threads(size)
    processes: list[subprocess.Popen[bytes]] = []
    connections: list[Connection] = []
    for _ in range(1, size):
        connection, other_end = Pipe()
        connections.append(connection)
        with other_end:
            command = [sys.executable, "-P", "-c", WORKER_PROGRAM]
            processes.append(subprocess.Popen(command, stdin=other_end.fileno()))
    try:
        for connection in connections:
            connection.recv()  # MLX is imported
        addresses = free_addresses(size)
        for rank, connection in enumerate(connections, start=1):
            connection.send((rank, addresses))
        return RankGroup(join_ring(0, addresses), connections, processes)
    except BaseException as error:
        for process in processes:
            process.kill()
        if isinstance(error, (EOFError, OSError, RuntimeError)):
            reason = str(error) or "a worker failed to start; see its error above"
            raise UserError(f"the ranks cannot be connected: {reason}.") from error
        raise


def run_spawned_worker() -> NoReturn:
    from multiprocessing.connection import Connection

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only rank 0 handles Ctrl-C
    connection = Connection(0)
    connection.send("MLX is imported")
    try:
        rank, addresses = connection.recv()
    except EOFError:
        os._exit(1)  # rank 0 has exited
    global _group
    _group = RankGroup(join_ring(rank, addresses), [connection])
    _group.serve()


def join_ring(rank: int, addresses: Sequence[str]) -> mpi.Group:
    """Joins MLX's ring, with the `host:port` of each rank; see `init_distributed`."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as hosts:
        json.dump([[address] for address in addresses], hosts)
        hosts.flush()
        os.environ.update(MLX_RANK=str(rank), MLX_HOSTFILE=hosts.name)
        try:
            return init_distributed("ring", RING_TIMEOUT_SECONDS)
        finally:
            del os.environ["MLX_RANK"], os.environ["MLX_HOSTFILE"]


def free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def _divide_threads(num_ranks: int) -> None:
    """Sets `TINY_LLM_NUM_THREADS`, if unset, to this machine's cores divided by `num_ranks`."""
    threads = max(1, (os.cpu_count() or 1) // num_ranks)
    os.environ.setdefault("TINY_LLM_NUM_THREADS", str(threads))
