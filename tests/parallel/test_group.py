"""Calls that run on all ranks: replicas, deletion, failures; connection of the ranks."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from typing import Any

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


class OneRank:
    """Stands in for `mx.distributed.Group`, of which this process may have one already."""

    def rank(self):
        return 0

    def size(self):
        return 1


class TwoRanks(OneRank):
    def size(self):
        return 2


def test_error_without_a_message_fails_on_all_ranks(monkeypatch):
    monkeypatch.setattr(group_module, "gather_text", lambda text, comm: [text])
    group = RankGroup(OneRank(), [])
    with pytest.raises(ModelError, match="ValueError"), group.agreement():
        raise ValueError
    group.end()


LOSE_RANK = """
import mlx.core as mx
from multiprocessing import Pipe
from tiny_llm.models.parallel.group import RankGroup, on_worker_lost
group = RankGroup(mx.distributed.init(), [])
on_worker_lost.append(lambda text: 1 / 0)
connection, other_end = Pipe()
other_end.close()
group._watch(1, connection)
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
    key = b"0123456789abcdef"
    connect: list[Any] = []
    monkeypatch.setattr(os, "urandom", lambda size: key)

    def gather_text(text: str, comm: Any) -> list[str]:
        _, port, key_text = text.split("\n")
        assert bytes.fromhex(key_text) == key
        address = ("127.0.0.1", int(port))
        with socket.create_connection(address) as stranger:
            stranger.sendall(key)
        connect.append(threading.Thread(target=join_as_rank_1, args=(address,)))
        connect[0].start()
        return [text]

    def join_as_rank_1(address: tuple[str, int]) -> None:
        for other in (b"another key", key):
            with suppress(AuthenticationError), Client(address, authkey=other) as worker:
                worker.send(1)
                worker.send("connected")

    monkeypatch.setattr(launch, "gather_text", gather_text)
    monkeypatch.setattr(launch, "_rank_0_host", lambda backend: "127.0.0.1")
    [connection] = launch._connect(TwoRanks(), "ring")
    assert connection.recv() == "connected"
    connect[0].join()
    with socket.socket(fileno=os.dup(connection.fileno())) as tcp:  # detects a lost machine
        assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_missing_worker_is_a_user_error(monkeypatch):
    def time_out(comm, backend):
        raise TimeoutError("timed out")

    monkeypatch.setattr(launch, "launcher_backend", lambda: "ring")
    monkeypatch.setattr(launch, "init_distributed", lambda backend, timeout: OneRank())
    monkeypatch.setattr(launch, "gather_text", lambda text, comm: [text])
    monkeypatch.setattr(launch, "_connect", time_out)
    with pytest.raises(UserError, match="the ranks cannot be connected: timed out"):
        launch.join_launched_ranks()


def test_failed_ring_kills_the_workers(monkeypatch):
    processes = []

    class Process(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            processes.append(self)

    def fail(rank, addresses):
        raise RuntimeError("no route to host")

    monkeypatch.setenv("TINY_LLM_NUM_THREADS", "1")
    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(launch, "join_ring", fail)
    with pytest.raises(UserError, match="the ranks cannot be connected: no route to host"):
        launch._spawn_group(2)
    assert [process.wait(60) for process in processes] == [-signal.SIGKILL]


def test_ranks_of_mpi_on_one_machine_use_loopback(monkeypatch):
    """A host name may resolve to another interface, or not at all."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2")
    assert launch._rank_0_host("mpi") == "127.0.0.1"
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1")
    assert launch._rank_0_host("mpi") == socket.gethostname()
