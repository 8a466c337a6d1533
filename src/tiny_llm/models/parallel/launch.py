"""Start of the ranks: by this process, which is then rank 0, or by `mlx.launch` or `mpirun`.

Launched ranks all run the same command line. Nothing is encrypted, so the network between the
machines must be private.
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
from typing import NoReturn

import mlx.core as mx

from ...errors import UserError
from . import mpi
from .group import RankGroup, gather_text

INIT_TIMEOUT_SECONDS = 8.0
HELLO_TIMEOUT_SECONDS = 2.0
# Program of a spawned worker, whose standard input is its connection to rank 0.
WORKER = "from tiny_llm.models.parallel import launch; launch.run_spawned_worker()"

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
    """Ends the workers; needed before an exit that skips exit handlers."""
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
        try:
            return "ring" if Path(env["MLX_HOSTFILE"]).stat().st_size else None
        except OSError as error:
            raise UserError(
                f"MLX_HOSTFILE cannot be read: {error}; unset it, or start the ranks with "
                "mlx.launch."
            ) from error
    return "mpi" if int(env.get("OMPI_COMM_WORLD_SIZE", "1")) > 1 else None


def join_launched_ranks() -> None:
    """Connects the ranks if a launcher has started this process; does not return on workers."""
    backend = launcher_backend()
    if backend is None:
        return
    try:
        comm = connect(backend)
    except RuntimeError as error:
        hint = "; set MLX_MPI_LIBNAME to the path of mpirun's library" if backend == "mpi" else ""
        raise UserError(f"the ranks cannot be connected: {error}{hint}.") from error
    from importlib.metadata import version  # imported only with a launcher, to save a megabyte

    own_versions = f"tiny-llm {version('tiny-llm')}, mlx {version('mlx')}"
    own_host = _rank_0_host(backend) if comm.rank() == 0 else "127.0.0.1"
    with socket.create_server((own_host, 0), backlog=comm.size()) as server:
        token, port = os.urandom(16).hex(), server.getsockname()[1]
        own = f"{own_host}\n{port}\n{token}\n{socket.gethostname()}\n{own_versions}"
        texts = (text.split("\n") for text in gather_text(own, comm))
        hosts, ports, tokens, machines, versions = zip(*texts, strict=True)
        if comm.rank() == 0:
            connections = _accept_workers(server, token, comm.size())
        else:
            connections = [socket.create_connection((hosts[0], int(ports[0])))]
            connections[0].sendall(f"{tokens[0]}{comm.rank():4}".encode())
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for rank, other_versions in enumerate(versions):
        if other_versions != versions[0]:
            raise UserError(
                f"rank {rank} has {other_versions}, but rank 0 has {versions[0]}; install the same "
                "versions on all ranks."
            )
    _divide_threads(machines.count(machines[comm.rank()]))
    global _group
    _group = RankGroup(comm, connections)
    if _group.rank > 0:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # only rank 0 handles these signals
        _group.serve()


def _rank_0_host(backend: str) -> str:
    if backend == "mpi":
        return socket.gethostname()
    address = os.environ.get("MLX_JACCL_COORDINATOR", "")
    if backend == "ring":
        address = json.loads(Path(os.environ["MLX_HOSTFILE"]).read_text())[0][0]
    return address.rpartition(":")[0]


def _accept_workers(server: socket.socket, token: str, size: int) -> list[socket.socket]:
    """Accepts one connection per worker, which begins with the token and the rank."""
    server.settimeout(INIT_TIMEOUT_SECONDS)
    accepted: dict[int, socket.socket] = {}
    while len(accepted) < size - 1:
        connection, _ = server.accept()
        connection.settimeout(HELLO_TIMEOUT_SECONDS)
        hello = b""
        with suppress(OSError):
            hello = connection.recv(len(token) + 4, socket.MSG_WAITALL)
        connection.settimeout(None)
        if hello.startswith(token.encode()):  # otherwise not a rank
            accepted[int(hello[len(token) :])] = connection
    return [accepted[rank] for rank in range(1, size)]


def connect(backend: str) -> mpi.Group:
    """Joins the ranks, which must call this at about the same time.

    Exits with status 1 and a traceback if other ranks are missing. MLX waits for them indefinitely
    and holds the GIL, so no Python thread can enforce the timeout. faulthandler's timer is a C
    thread; it replaces the timer of the server's watchdog.

    Raises:
        RuntimeError: an address cannot be used, or MPI cannot be loaded.
    """
    if backend == "mpi":
        mpi.configure()
    faulthandler.dump_traceback_later(INIT_TIMEOUT_SECONDS, exit=True, file=2)
    try:
        comm = mx.distributed.init(strict=True, backend=backend)
    finally:
        faulthandler.cancel_dump_traceback_later()
    if backend == "mpi":
        mpi.register(comm)
    return comm


# ---------------------------------------------------------------- spawned ranks


def _spawn_group(size: int) -> RankGroup:
    """Spawns workers, which MLX's ring connects on the loopback interface."""
    _divide_threads(size)
    processes: list[subprocess.Popen[bytes]] = []
    connections: list[socket.socket] = []
    for _ in range(1, size):
        connection, other_end = socket.socketpair()
        connections.append(connection)
        with other_end:
            command = [sys.executable, "-P", "-c", WORKER]
            processes.append(subprocess.Popen(command, stdin=other_end.fileno()))
    for rank, connection in enumerate(connections, start=1):
        if not connection.recv(1):
            for process in processes:
                process.kill()
            raise UserError(f"rank {rank} of {size} is lost: it failed to start.")
    addresses = free_addresses(size)
    for rank, connection in enumerate(connections, start=1):
        connection.sendall(" ".join([str(rank), *addresses]).encode())
    return RankGroup(join_ring(0, addresses), connections, processes)


def run_spawned_worker() -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only rank 0 handles Ctrl-C
    connection = socket.socket(fileno=0)
    connection.sendall(b"!")  # MLX is imported
    message = connection.recv(4096)
    if not message:
        os._exit(1)  # rank 0 has exited
    rank, *addresses = message.decode().split()
    global _group
    _group = RankGroup(join_ring(int(rank), addresses), [connection])
    _group.serve()


def join_ring(rank: int, addresses: Sequence[str]) -> mpi.Group:
    """Joins MLX's ring, with the `host:port` of each rank; see `connect`."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as hosts:
        json.dump([[address] for address in addresses], hosts)
        hosts.flush()
        os.environ.update(MLX_RANK=str(rank), MLX_HOSTFILE=hosts.name)
        try:
            return connect("ring")
        finally:
            del os.environ["MLX_RANK"], os.environ["MLX_HOSTFILE"]


def free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def _divide_threads(num_ranks: int) -> None:
    """Sets the threads per rank, if unset, to this machine's cores / `num_ranks`."""
    threads = max(1, (os.cpu_count() or 1) // num_ranks)
    os.environ.setdefault("TINY_LLM_NUM_THREADS", str(threads))
