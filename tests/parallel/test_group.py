"""Calls that run on all ranks: replicas, deletion, failures; connection of the ranks."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from tiny_llm import LLM, ModelError, UserError
from tiny_llm.models.parallel import group as group_module
from tiny_llm.models.parallel import launch
from tiny_llm.models.parallel.group import RankGroup, _defer_interrupt
from tiny_llm.models.parallel.launch import current_group

pytestmark = pytest.mark.usefixtures("on_cpu")

# Sets `counts` to the number of replicas that each rank keeps; rank 0 keeps none.
COUNT_REPLICAS = """
from tiny_llm.models.parallel import group, launch
counts = group.gather_text(str(len(group._replicas)), launch.current_group().comm)
"""

FAIL = """
from tiny_llm import UserError
from tiny_llm.models.parallel.launch import get_group
group = get_group(2)
try:
    group.run(exec, "from tiny_llm.models.parallel.launch import current_group; " + {!r})
except ZeroDivisionError:
    try:
        group.run(print)
    except UserError as error:
        print(error)
"""


def count_replicas() -> list[str]:
    names: dict[str, Any] = {}
    current_group().run(exec, COUNT_REPLICAS, names)
    counts: list[str] = names["counts"]
    return counts


def test_workers_delete_what_rank_0_has_deleted():
    llm = LLM("demo", kv_cache_bytes=2**24, tensor_parallel_size=2)
    other = LLM("demo", kv_cache_bytes=2**24, tensor_parallel_size=2)
    gc.collect()
    before = count_replicas()
    del llm
    gc.collect()
    after = count_replicas()
    assert before[0] == after[0] == "0"
    assert int(after[1]) < int(before[1])
    assert other.generate([[5]])[0].finished


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "status", "stdout", "stderr"),
    [
        (
            "current_group().rank or 1 / 0",
            0,
            "the rank group has shut down: a call failed on rank 0.",
            "",
        ),
        (
            "1 / (1 - current_group().rank)",
            1,
            "",
            "tiny-llm: rank 1: ZeroDivisionError: division by zero",
        ),
    ],
    ids=["rank 0", "rank 1"],
)
def test_failed_call_ends_the_group(call, status, stdout, stderr):
    # Rank 0 waits for the failed rank.
    wait = "; current_group().rank or __import__('time').sleep(9)"
    program = FAIL.format(call + (wait if status else ""))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (status, stdout)
    assert stderr in done.stderr
    assert ("rank 1 of 2 is lost: exit status 1." in done.stderr) == (status == 1)


def comm_of(size: int) -> Any:
    """Stands in for `mx.distributed.Group`, of which this process may have one already."""
    return SimpleNamespace(rank=lambda: 0, size=lambda: size)


def test_error_without_a_message_fails_on_all_ranks(monkeypatch):
    monkeypatch.setattr(group_module, "gather_text", lambda text, comm: [text])
    group = RankGroup(comm_of(1), [])
    with pytest.raises(ModelError, match="ValueError"), group.agreement():
        raise ValueError
    group.end()


LOSE_RANK = """
import time
import mlx.core as mx
from multiprocessing import Pipe
from tiny_llm.models.parallel.group import RankGroup, on_worker_lost
on_worker_lost.append(lambda text: 1 / 0)
connection, other_end = Pipe()
other_end.close()
group = RankGroup(mx.distributed.init(), [connection])
time.sleep(60)
"""


def test_failing_callback_does_not_delay_the_exit():
    done = subprocess.run(
        [sys.executable, "-c", LOSE_RANK], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "\ntiny-llm: rank 1 of 1 is lost: connection closed.\n"


def test_deferred_interrupt_of_a_failing_call():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), _defer_interrupt():  # noqa: PT012
            signal.raise_signal(signal.SIGINT)
            raise UserError("the call fails")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_strangers_are_not_ranks(monkeypatch):
    """Rank 0 accepts only a connection with the key that it has sent over MLX."""
    connect: list[Any] = []
    monkeypatch.setenv("TINY_LLM_NUM_THREADS", "1")

    def gather_text(text: str, comm: Any) -> list[str]:
        host, port, key = json.loads(text)[2:]
        with socket.create_connection((host, port)) as stranger:
            stranger.sendall(b"0123456789abcdef")
        connect.append(threading.Thread(target=join_as_rank_1, args=((host, port), key)))
        connect[0].start()
        return [text]

    def join_as_rank_1(address: tuple[str, int], key: str) -> None:
        for authkey in (b"another key", key.encode()):
            with suppress(AuthenticationError), Client(address, authkey=authkey) as worker:
                worker.send(1)
                worker.send("connected")

    monkeypatch.setattr(launch, "gather_text", gather_text)
    [connection] = launch._connect(comm_of(2), "127.0.0.1")
    assert connection.recv() == "connected"
    connect[0].join()
    with socket.socket(fileno=os.dup(connection.fileno())) as tcp:  # detects a lost machine
        assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.parametrize(
    ("program", "message"),
    [(launch.WORKER_PROGRAM, "no route to host"), ("import missing", "a worker failed to start")],
)
def test_failed_start_kills_the_workers(monkeypatch, program, message):
    processes = []

    class Process(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            processes.append(self)

    def fail(strict, backend):
        raise RuntimeError("no route to host")

    monkeypatch.setenv("TINY_LLM_NUM_THREADS", "1")
    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(launch, "WORKER_PROGRAM", program)
    monkeypatch.setattr(mx.distributed, "init", fail)
    with pytest.raises(UserError, match=f"the ranks cannot be connected: {message}"):
        launch._spawn_group(2)
    assert processes[0].wait(60) != 0
    assert launch._launcher() is None


def test_ranks_of_mpi_on_one_machine_use_loopback(monkeypatch):
    """A host name may resolve to another interface, or not at all."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2")
    assert launch._launcher() == ("mpi", "127.0.0.1")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1")
    assert launch._launcher() == ("mpi", socket.gethostname())
