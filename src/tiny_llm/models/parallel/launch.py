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
from typing import NoReturn

import mlx.core as mx

from ...errors import UserError
from . import mpi
from .group import RankGroup, gather_text, receive

INIT_TIMEOUT_SECONDS = 8.0
HANDSHAKE_TIMEOUT_SECONDS = 2
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
        try:
            return "ring" if Path(env["MLX_HOSTFILE"]).stat().st_size else None
        except OSError as error:
            raise UserError(
                f"MLX_HOSTFILE cannot be read: {error}; unset it, or start the ranks with "
                "mlx.launch."
            ) from error
    return "mpi" if int(env.get("OMPI_COMM_WORLD_SIZE", "1")) > 1 else None


def join_launched_ranks() -> None:
    """Joins the group if a launcher started this process; never returns on workers.

    Raises:
        UserError: the ranks cannot be connected, or their versions differ.
    """
    backend = launcher_backend()
    if backend is None:
        return
    try:
        comm = init_distributed(backend)
    except RuntimeError as error:
        hint = "; set MLX_MPI_LIBNAME to the path of mpirun's library" if backend == "mpi" else ""
        raise UserError(f"the ranks cannot be connected: {error}{hint}.") from error
    from importlib.metadata import version  # imported only with a launcher, to save a megabyte

    local_versions = f"tiny-llm {version('tiny-llm')}, mlx {version('mlx')}"
    local_info = f"{socket.gethostname()}\n{local_versions}"
    texts = (text.split("\n") for text in gather_text(local_info, comm))
    machines, versions = zip(*texts, strict=True)
    for rank, other_versions in enumerate(versions):
        if other_versions != versions[0]:
            raise UserError(
                f"rank {rank} has {other_versions}, but rank 0 has {versions[0]}; install the same "
                "versions on all ranks."
            )
    try:
        connections = _connect_sockets(comm, backend)
    except OSError as error:
        raise UserError(f"the ranks cannot be connected: {error}.") from error
    _divide_threads(machines.count(machines[comm.rank()]))
    global _group
    _group = RankGroup(comm, connections)
    if _group.rank > 0:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # only rank 0 handles these signals
        _group.serve()


def _connect_sockets(comm: mpi.Group, backend: str) -> list[socket.socket]:
    """Returns rank 0's connections to the workers, in rank order, or a worker's to rank 0."""
    if comm.rank() == 0:
        host, token = _rank_0_host(backend), os.urandom(16).hex()
        # On Debian, the host name resolves to 127.0.1.1, which other machines cannot reach.
        interface = "" if host == socket.gethostname() else host
        with socket.create_server((interface, 0), backlog=comm.size()) as server:
            gather_text(f"{host}\n{server.getsockname()[1]}\n{token}", comm)
            connections = _accept_workers(server, token, comm.size())
    else:
        host, port, token = gather_text("", comm)[0].split("\n")
        connections = [socket.create_connection((host, int(port)), INIT_TIMEOUT_SECONDS)]
        connections[0].settimeout(None)
        connections[0].sendall(f"{token}{comm.rank():4}".encode())
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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


def _accept_workers(server: socket.socket, token: str, size: int) -> list[socket.socket]:
    """Accepts a connection from each worker, authenticated by the token."""
    server.settimeout(INIT_TIMEOUT_SECONDS)
    accepted: dict[int, socket.socket] = {}
    while len(accepted) < size - 1:
        connection, _ = server.accept()
        with suppress(OSError):  # not a rank
            hello = receive(connection, len(token) + 4, HANDSHAKE_TIMEOUT_SECONDS)
            if hello.startswith(token.encode()):
                accepted[int(hello[len(token) :])] = connection
    return [accepted[rank] for rank in range(1, size)]


def init_distributed(backend: str) -> mpi.Group:
    """Initializes `mx.distributed` on all ranks within `INIT_TIMEOUT_SECONDS`.

    On a timeout, the process exits with status 1 and a traceback. MLX blocks until all ranks have
    joined and holds the GIL, so only a C thread, faulthandler's timer, can enforce the timeout.
    This replaces the timer of the server's watchdog, which rearms it every second.

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
    """Spawns workers and joins them in an MLX ring on the loopback interface."""
    _divide_threads(size)
    processes: list[subprocess.Popen[bytes]] = []
    connections: list[socket.socket] = []
    for _ in range(1, size):
        connection, other_end = socket.socketpair()
        connections.append(connection)
        with other_end:
            command = [sys.executable, "-P", "-c", WORKER_PROGRAM]
            processes.append(subprocess.Popen(command, stdin=other_end.fileno()))
    try:
        comm = _join_workers(connections)
    except BaseException as error:
        for process in processes:
            process.kill()
        if isinstance(error, (OSError, RuntimeError)):
            raise UserError(f"the ranks cannot be connected: {error}.") from error
        raise
    return RankGroup(comm, connections, processes)


def _join_workers(connections: Sequence[socket.socket]) -> mpi.Group:
    size = 1 + len(connections)
    for rank, connection in enumerate(connections, start=1):
        if not connection.recv(1):
            raise UserError(f"rank {rank} of {size} failed to start; see its error above.")
    addresses = free_addresses(size)
    for rank, connection in enumerate(connections, start=1):
        connection.sendall(" ".join([str(rank), *addresses]).encode())
    return join_ring(0, addresses)


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
    """Joins MLX's ring, with the `host:port` of each rank; see `init_distributed`."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as hosts:
        json.dump([[address] for address in addresses], hosts)
        hosts.flush()
        os.environ.update(MLX_RANK=str(rank), MLX_HOSTFILE=hosts.name)
        try:
            return init_distributed("ring")
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
