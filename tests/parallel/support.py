"""Groups in processes of their own, for tests in which they are lost."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tiny_llm.models.parallel.ring import free_addresses

SECONDS = 10.0  # in which a group has ended that has lost a rank

# Answers without end; each line says that an answer is there.
GENERATE_FOREVER = """
from tiny_llm import LLM, SamplingParams
llm = LLM("demo", kv_cache_bytes=2**24, tensor_parallel_size=2)
while True:
    llm.generate([[17, 5, 99]], SamplingParams(max_tokens=64, ignore_eos=True))
    print("answered", flush=True)
"""


def start_group(seconds_before: float = 0.0) -> tuple[subprocess.Popen[str], list[int]]:
    """A program that answers on two ranks, and the other rank's process.

    Args:
        seconds_before: that it answers before this returns.
    """
    program = subprocess.Popen(
        [sys.executable, "-c", GENERATE_FOREVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "answered\n"
    time.sleep(seconds_before)
    return program, ranks_of(program.pid)


def start_until_ranks_exist() -> tuple[subprocess.Popen[str], list[int]]:
    """As `start_group`, and returns as soon as the other rank's process has begun."""
    program = subprocess.Popen(
        [sys.executable, "-c", GENERATE_FOREVER],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (ranks := ranks_of(program.pid)):
        assert program.poll() is None
        time.sleep(0.01)
    return program, ranks


@contextlib.contextmanager
def mlx_launch(*command: str) -> Iterator[subprocess.Popen[str]]:
    """`mlx.launch` with a host file of two machines, which are both this one."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as hosts:
        json.dump([{"ssh": "127.0.0.1", "ips": ["127.0.0.1"]}] * 2, hosts)
        hosts.flush()
        port = free_addresses(1)[0].rpartition(":")[2]
        launcher = ["-c", "from mlx._distributed_utils.launch import main; main()"]
        launcher += ["--backend", "ring", "--hostfile", hosts.name, "--starting-port", port, "--"]
        process = subprocess.Popen(
            [sys.executable, *launcher, sys.executable, "-m", "tiny_llm", *command],
            stdin=subprocess.PIPE,  # stays open: mlx.launch reads it again and again
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


# Which rank of a launcher's is lost, and how. The first is tried always.
LOST_RANK_CASES = [
    (1, signal.SIGKILL),
    (0, signal.SIGKILL),
    (1, signal.SIGSTOP),
    (0, signal.SIGSTOP),
]


def lose_rank(launcher: subprocess.Popen[str], rank: int, number: signal.Signals) -> None:
    """Has one of two launched ranks of `chat` get a signal after an answer; both are to end.

    Args:
        launcher: has started them, and nothing else.
        rank: which one.
        number: of the signal.
    """
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    launcher.stdin.write("What is RoPE?\n")
    launcher.stdin.flush()
    assert launcher.stdout.readline()  # the answer: both ranks are connected
    ranks = children_of(launcher.pid)
    assert len(ranks) == 2
    os.kill(ranks[rank], number)
    lost = time.monotonic()
    assert wait_until_exited(ranks, SECONDS), (rank, number)
    print(f"rank {rank}, {number.name}: gone after {time.monotonic() - lost:.2f} s")


def wait_for_exit(program: subprocess.Popen[str], seconds: float) -> tuple[int, str]:
    """How a program ended within so many seconds: its status, and what it said of errors."""
    try:
        _, errors = program.communicate(timeout=seconds)
    finally:
        program.kill()
    return program.returncode, errors


def children_of(parent: int) -> list[int]:
    """The processes that a process has started, in any of its threads."""
    threads = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for thread in threads for pid in _read(thread).split()]


def ranks_of(parent: int) -> list[int]:
    """The processes that a process has started as ranks."""
    commands = {child: Path(f"/proc/{child}/cmdline") for child in children_of(parent)}
    is_rank = {child: _read(path) for child, path in commands.items()}
    return [child for child, command in is_rank.items() if b"tp_worker" in command]


def _read(path: Path) -> bytes:
    """What a file says; nothing if it is gone."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def wait_until_exited(processes: Sequence[int], seconds: float) -> bool:
    """Whether processes end within so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{process}").exists() for process in processes):
            return True
        time.sleep(0.05)
    return False
