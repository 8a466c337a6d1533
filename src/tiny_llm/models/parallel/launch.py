"""Starts the ranks: spawns workers, or joins ranks launched by `mlx.launch` or `mpirun`.

Launched ranks all run the same command line. `--tensor-parallel-size` spawns workers on this
machine as `mlx.launch` does, with a host file of MLX's ring and the rank in the environment.
Traffic is unencrypted and trusted: use a private network.
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
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from ...errors import UserError
from . import mpi
from .group import RankGroup, gather_text
from .layers import Group

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LAUNCH_TIMEOUT_SECONDS = 60.0  # includes imports on other machines; a launcher ends failed ranks
SPAWN_TIMEOUT_SECONDS = 8.0  # after all imports
# A machine that does not respond for 8 seconds is lost. Its kernel responds for a paused process.
TCP_OPTIONS = {
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": 2,
    "TCP_KEEPALIVE": 2,  # macOS's name of TCP_KEEPIDLE
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 8000,  # ms, for unacknowledged data
}
# Program of a spawned worker, whose standard input and output are pipes to rank 0.
WORKER_PROGRAM = """
import importlib.metadata, multiprocessing.connection, os
from tiny_llm.models.parallel import launch
os.write(1, b"imported")
os.read(0, 1)  # until rank 0 has written the host file
os.dup2(2, 1)
launch.join_launched_ranks(launch.SPAWN_TIMEOUT_SECONDS)
"""

_group: RankGroup | None = None
_lock = threading.Lock()


def get_group(size: int) -> RankGroup:
    """Returns this process's group, which all models share; the first call starts it.

    Raises:
        UserError: the existing group has a different size.
    """
    with _lock:
        if _group is None:
            join_launched_ranks()
        if _group is None:
            _spawn_group(size)
    group = current_group()
    if group.size != size:
        raise UserError(
            f"tensor_parallel_size is {size}, but this process already has a group of "
            f"{group.size} ranks; use {group.size}, or start another process."
        )
    return group


def current_group() -> RankGroup:
    assert _group is not None
    return _group


def end_group() -> None:
    """Shuts down the workers; required before `os._exit`, which skips exit handlers."""
    if _group is not None:
        _group.end()


def num_launched_ranks() -> int:
    """Number of launched ranks; 1 without a launcher or before `join_launched_ranks`."""
    return _group.size if _group is not None and launcher_backend() is not None else 1


def launcher_backend() -> str | None:
    """`mx.distributed` backend of the launcher; None without a launcher or for a single rank."""
    env = os.environ
    if "MLX_RANK" in env and "MLX_IBV_DEVICES" in env:
        return "jaccl"
    if "MLX_RANK" in env and "MLX_HOSTFILE" in env:
        return "ring" if Path(env["MLX_HOSTFILE"]).stat().st_size else None
    return "mpi" if int(env.get("OMPI_COMM_WORLD_SIZE", "1")) > 1 else None


def join_launched_ranks(
    timeout: float = LAUNCH_TIMEOUT_SECONDS, processes: Sequence["subprocess.Popen[bytes]"] = ()
) -> None:
    """Joins the group if a launcher started this process; never returns on workers.

    After `timeout` seconds, the process exits with status 1 and a traceback. MLX blocks until all
    ranks have joined and holds the GIL, so only a C thread, faulthandler's timer, can do this. It
    replaces the timer of the server's watchdog, which rearms it every second.

    Args:
        timeout: for MLX; the connections may take `LAUNCH_TIMEOUT_SECONDS`.
        processes: see `RankGroup`.

    Raises:
        UserError: the ranks cannot be connected, or their versions differ.
    """
    global _group
    try:
        backend = launcher_backend()
    except OSError as error:
        raise UserError(f"the ranks cannot be connected: {error}.") from error
    if backend is None:
        return
    from importlib.metadata import version  # imported only for several ranks, to save a megabyte

    versions = f"tiny-llm {version('tiny-llm')}, mlx {version('mlx')}"
    faulthandler.dump_traceback_later(timeout, exit=True, file=2)
    try:
        comm = mpi.init() if backend == "mpi" else mx.distributed.init(True, backend)
        faulthandler.dump_traceback_later(LAUNCH_TIMEOUT_SECONDS, exit=True, file=2)
        connections = _connect(comm, _rank_0_host(backend), versions)
    except (OSError, RuntimeError) as error:
        hint = "; set MLX_MPI_LIBNAME to the path of mpirun's library" if backend == "mpi" else ""
        raise UserError(f"the ranks cannot be connected: {error}{hint}.") from error
    finally:
        faulthandler.cancel_dump_traceback_later()
    _group = RankGroup(comm, connections, processes)
    if _group.rank > 0:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # only rank 0 handles these signals
        _group.serve()


def _connect(comm: Group, host: str, own_versions: str) -> list["Connection"]:
    """Exchanges versions and addresses, then connects rank 0, at `host`, to each worker.

    Returns:
        Rank 0's connections, in rank order, or a worker's to rank 0.
    """
    from multiprocessing import AuthenticationError
    from multiprocessing.connection import Client, Listener

    machine, address = socket.gethostname(), None
    if comm.rank() == 0:
        key = os.urandom(16)
        # On Debian, the host name resolves to 127.0.1.1, which other machines cannot reach.
        interface = "" if host == machine else host
        listener = Listener((interface, 0), backlog=comm.size(), authkey=key)
        address = host, listener.address[1], key.hex()
    texts = gather_text(json.dumps([machine, own_versions, address]), comm)
    machines, versions, addresses = zip(*map(json.loads, texts), strict=True)
    for rank, other in enumerate(versions):
        if other != versions[0]:
            raise UserError(
                f"rank {rank} has {other}, but rank 0 has {versions[0]}; install the same versions "
                "on all ranks."
            )
    threads = max(1, (os.cpu_count() or 1) // machines.count(machine))
    os.environ.setdefault("TINY_LLM_NUM_THREADS", str(threads))
    connections: dict[int, Connection] = {}  # by rank
    if comm.rank() > 0:
        host, port, text = addresses[0]
        connections[0] = Client((host, port), authkey=bytes.fromhex(text))
        connections[0].send(comm.rank())
    else:
        with listener:
            while len(connections) < comm.size() - 1:
                with suppress(AuthenticationError, EOFError, OSError):  # not a rank
                    connection = listener.accept()
                    connections[connection.recv()] = connection
    for connection in connections.values():
        with socket.socket(fileno=os.dup(connection.fileno())) as tcp:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in TCP_OPTIONS.items():
                if hasattr(socket, name):
                    tcp.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return [connections[rank] for rank in sorted(connections)]


def _rank_0_host(backend: str) -> str:
    """Rank 0's address, according to the launcher."""
    env = os.environ
    if backend == "ring":
        address: str = json.loads(Path(env["MLX_HOSTFILE"]).read_text())[0][0]
        return address.rpartition(":")[0]
    if backend == "jaccl":
        return env["MLX_JACCL_COORDINATOR"].rpartition(":")[0]
    is_local = env["OMPI_COMM_WORLD_LOCAL_SIZE"] == env["OMPI_COMM_WORLD_SIZE"]
    return "127.0.0.1" if is_local else socket.gethostname()


def _spawn_group(size: int) -> None:
    """Starts workers on the loopback interface, as a launcher would, and joins them."""
    command = [sys.executable, "-P", "-c", WORKER_PROGRAM]
    processes: list[Any] = []
    with tempfile.NamedTemporaryFile("w", suffix=".json") as hosts:
        os.environ.update(MLX_RANK="0", MLX_HOSTFILE=hosts.name)
        # A separate process group, so that workers do not receive Ctrl-C.
        options: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "process_group": 0}
        options["env"] = env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        try:
            for rank in range(1, size):
                env["MLX_RANK"] = str(rank)
                processes.append(subprocess.Popen(command, **options))
            if not all(process.stdout.read(1) for process in processes):
                raise UserError(
                    "the ranks cannot be connected: a worker failed to start; see its error above."
                )
            json.dump([[address] for address in free_addresses(size)], hosts)
            hosts.flush()
            for process in processes:
                process.stdin.close()
                process.stdout.close()
            join_launched_ranks(SPAWN_TIMEOUT_SECONDS, processes)
        except BaseException as error:
            for process in processes:
                process.kill()
            if isinstance(error, OSError):
                raise UserError(f"the ranks cannot be connected: {error}.") from error
            raise
        finally:
            del os.environ["MLX_RANK"], os.environ["MLX_HOSTFILE"]


def free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses
