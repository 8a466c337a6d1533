"""Calls that run on all ranks: replicas, deletion, failures; connection of the ranks."""

import fcntl
import gc
import resource
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from tiny_llm import LLM, ModelError, UserError
from tiny_llm.models.parallel import group as group_module
from tiny_llm.models.parallel import launch
from tiny_llm.models.parallel.group import RankGroup, _defer_interrupt, receive
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


def test_error_without_a_message_fails_on_all_ranks(monkeypatch):
    monkeypatch.setattr(group_module, "gather_text", lambda text, comm: [text])
    group = RankGroup(OneRank(), [])
    with pytest.raises(ModelError, match="ValueError"), group.agreement():
        raise ValueError
    group.end()


LOSE_RANK = """
import socket
import mlx.core as mx
from tiny_llm.models.parallel.group import RankGroup
group = RankGroup(mx.distributed.init(), [])
group.on_worker_lost.append(lambda text: 1 / 0)
connection, other_end = socket.socketpair()
other_end.close()
group._watch(1, connection)
"""


def test_failing_callback_does_not_delay_the_exit():
    done = subprocess.run(
        [sys.executable, "-c", LOSE_RANK], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "\ntiny-llm: rank 1 of 1 is lost: connection closed.\n"


def test_receive_with_many_open_files():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(2048, before[0]), before[1]))
    try:
        sender, receiver = socket.socketpair()
        number = fcntl.fcntl(receiver, fcntl.F_DUPFD_CLOEXEC, 1024)
        with sender, receiver, socket.socket(fileno=number) as duplicate:
            sender.sendall(b"call")
            assert receive(duplicate, 4) == b"call"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_deferred_interrupt_of_a_failing_call():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), _defer_interrupt():  # noqa: PT012
            signal.raise_signal(signal.SIGINT)
            raise UserError("the call fails")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


# ---------------------------------------------------------------- connection of the ranks


def test_handshake_in_parts():
    token = "0123456789abcdef"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(token.encode())
        with socket.create_connection(("127.0.0.1", port)) as worker:
            worker.sendall(token.encode())
            rest = threading.Timer(0.2, worker.sendall, (b"   1",))
            rest.start()
            [connection] = launch._accept_workers(server, token, 2)
            rest.join()
            with connection:
                assert connection.getpeername() == worker.getsockname()


def test_missing_worker_is_a_user_error(monkeypatch):
    def time_out(comm, backend):
        raise TimeoutError("timed out")

    monkeypatch.setattr(launch, "launcher_backend", lambda: "ring")
    monkeypatch.setattr(launch, "init_distributed", lambda backend: OneRank())
    monkeypatch.setattr(launch, "gather_text", lambda text, comm: [text])
    monkeypatch.setattr(launch, "_connect_sockets", time_out)
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
