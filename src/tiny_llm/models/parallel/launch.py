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
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...errors import UserError
from ..checkpoint.safe_io import model_errors
from . import mpi
from .group import RankGroup, gather_text
from .layers import Group

LAUNCH_TIMEOUT_SECONDS = 60.0  # includes imports on other machines; a launcher ends failed ranks
SPAWN_TIMEOUT_SECONDS = 8.0  # after all imports
LOOPBACK = "127.0.0.1"
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
_connecting = model_errors("the ranks cannot be connected", OSError, RuntimeError)


def get_group(size: int) -> RankGroup:
    """Returns this process's group, which all models share; the first call starts it."""
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
    return 1 if _group is None or _group.processes else _group.size


@_connecting
def join_launched_ranks(
    timeout: float = LAUNCH_TIMEOUT_SECONDS, processes: Sequence["subprocess.Popen[bytes]"] = ()
) -> None:
    """Joins the group if a launcher started this process; never returns on workers.

    If MLX takes more than `timeout` seconds, or the connections more than `LAUNCH_TIMEOUT_SECONDS`,
    the process exits with status 1 and a traceback. MLX blocks until all ranks have joined and
    holds the GIL, so only a C thread, faulthandler's timer, can do this. It replaces the timer of
    the server's watchdog, which rearms it every second. UserError if the ranks cannot be connected,
    or their versions differ.
    """
    global _group
    if (launcher := _launcher()) is None:
        return
    backend, host = launcher
    faulthandler.dump_traceback_later(timeout, exit=True, file=2)
    try:
        comm = mpi.init() if backend == "mpi" else mx.distributed.init(True, backend)
        faulthandler.dump_traceback_later(LAUNCH_TIMEOUT_SECONDS, exit=True, file=2)  # to connect
        _group = RankGroup(comm, _connect(comm, host), processes)
    finally:
        faulthandler.cancel_dump_traceback_later()
    if _group.rank > 0:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # only rank 0 handles these signals
        _group.serve()


def _launcher() -> tuple[str, str] | None:
    """`mx.distributed` backend and rank 0's host; None without a launcher or for a single rank."""
    env = os.environ
    if "MLX_RANK" in env and "MLX_IBV_DEVICES" in env:
        return "jaccl", env["MLX_JACCL_COORDINATOR"].rpartition(":")[0]
    if "MLX_RANK" in env and "MLX_HOSTFILE" in env:
        hosts = Path(env["MLX_HOSTFILE"]).read_text()
        return ("ring", json.loads(hosts)[0][0].rpartition(":")[0]) if hosts else None
    if (size := env.get("OMPI_COMM_WORLD_SIZE", "1")) == "1":
        return None
    return "mpi", LOOPBACK if env["OMPI_COMM_WORLD_LOCAL_SIZE"] == size else socket.gethostname()


def _connect(comm: Group, host: str) -> list[Any]:
    """Exchanges versions and connects rank 0, at `host`, to the workers; see `RankGroup`."""
    # Imported only for several ranks, to save a megabyte.
    from importlib.metadata import version
    from multiprocessing import AuthenticationError
    from multiprocessing.connection import Client, Listener

    machine, key, port = socket.gethostname(), os.urandom(16).hex(), 0
    if comm.rank() == 0:
        # On Debian, the host name resolves to 127.0.1.1, which other machines cannot reach.
        interface = "" if host == machine else host
        listener = Listener((interface, 0), backlog=comm.size(), authkey=key.encode())
        port = listener.address[1]
    own = f"tiny-llm {version('tiny-llm')}, mlx {version('mlx')}"
    texts = gather_text(json.dumps([machine, own, host, port, key]), comm)
    machines, versions, hosts, ports, keys = zip(*map(json.loads, texts), strict=True)
    for rank, other in enumerate(versions):
        if other != versions[0]:
            raise UserError(
                f"rank {rank} has {other}, but rank 0 has {versions[0]}; install the same versions "
                "on all ranks."
            )
    threads = (os.cpu_count() or 1) // machines.count(machine) or 1
    os.environ.setdefault("TINY_LLM_NUM_THREADS", str(threads))
    connections: dict[int, Any] = {}  # by rank
    if comm.rank() > 0:
        connections[0] = Client((hosts[0], ports[0]), authkey=keys[0].encode())
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


@_connecting
def _spawn_group(size: int) -> None:
    """Starts workers on the loopback interface, as a launcher would, and joins them."""
    command = [sys.executable, "-P", "-c", WORKER_PROGRAM]
    # A separate process group, so that workers do not receive Ctrl-C.
    options: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "process_group": 0}
    processes: list[Any] = []
    with tempfile.NamedTemporaryFile("w", suffix=".json") as hosts:
        os.environ.update(MLX_RANK="0", MLX_HOSTFILE=hosts.name)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        try:
            for rank in range(1, size):
                env["MLX_RANK"] = str(rank)
                processes.append(subprocess.Popen(command, env=env, **options))
            if not all(process.stdout.read(1) for process in processes):
                raise OSError("a worker failed to start; see its error above")
            json.dump([[address] for address in free_addresses(size)], hosts)
            hosts.flush()
            for process in processes:
                process.stdin.close()
                process.stdout.close()
            join_launched_ranks(SPAWN_TIMEOUT_SECONDS, processes)
        except BaseException:
            for process in processes:
                process.kill()
            raise
        finally:
            del os.environ["MLX_RANK"], os.environ["MLX_HOSTFILE"]


def free_addresses(count: int) -> list[str]:
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(count)]
        return [f"{LOOPBACK}:{server.getsockname()[1]}" for server in servers]
