"""Starts rank groups in child processes, kills ranks and waits for exit."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tiny_llm.models.parallel.launch import free_addresses

EXIT_SECONDS = 10.0  # seconds within which a group must exit after losing a rank

# Program that generates on two ranks until killed, and prints a line after each completion.
GENERATE_FOREVER = """
from tiny_llm import LLM, SamplingParams
llm = LLM("demo", kv_cache_bytes=2**24, tensor_parallel_size=2)
while True:
    llm.generate([[17, 5, 99]], SamplingParams(max_tokens=64, ignore_eos=True))
    print("completed", flush=True)
"""


def _generate_forever(stdout: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", GENERATE_FOREVER], stdout=stdout, stderr=subprocess.PIPE, text=True
    )


def start_group(delay: float = 0.0) -> tuple[subprocess.Popen[str], list[int]]:
    """Starts generation on two ranks; returns the process and its workers' pids.

    Returns `delay` seconds after the first completion.
    """
    program = _generate_forever(subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdout.readline() == "completed\n"
    time.sleep(delay)
    return program, ranks_of(program.pid)


def start_without_waiting() -> tuple[subprocess.Popen[str], list[int]]:
    """Like `start_group`, but returns as soon as the worker process exists."""
    program = _generate_forever(subprocess.DEVNULL)
    while not (ranks := ranks_of(program.pid)):
        assert program.poll() is None
        time.sleep(0.01)
    return program, ranks


@contextlib.contextmanager
def mlx_launch(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Runs `mlx.launch` with a host file that lists this machine twice."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as hosts:
        json.dump([{"ssh": "127.0.0.1", "ips": ["127.0.0.1"]}] * 2, hosts)
        hosts.flush()
        port = free_addresses(1)[0].rpartition(":")[2]
        launcher = ["-c", "from mlx._distributed_utils.launch import main; main()"]
        launcher += ["--backend", "ring", "--hostfile", hosts.name, "--starting-port", port, "--"]
        process = subprocess.Popen(
            [sys.executable, *launcher, sys.executable, "-m", "tiny_llm", *command],
            stdin=subprocess.PIPE,  # must stay open, because mlx.launch polls it
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent))


def mpirun(*command: str) -> subprocess.Popen[str]:
    """Starts Python with the given arguments on two ranks."""
    return subprocess.Popen(
        [str(MPIRUN), "-n", "2", sys.executable, *command],
        env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lose_rank(launcher: subprocess.Popen[str], rank: int) -> None:
    """Kills a rank of a two-rank `chat` after a reply; both ranks must exit."""
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    launcher.stdin.write("What is RoPE?\n")
    launcher.stdin.flush()
    assert launcher.stdout.readline()  # both ranks are connected once a reply arrives
    ranks = children_of(launcher.pid)
    assert len(ranks) == 2
    os.kill(ranks[rank], signal.SIGKILL)
    killed_at = time.monotonic()
    assert wait_until_exited(ranks, EXIT_SECONDS), rank
    print(f"rank {rank}: exited after {time.monotonic() - killed_at:.2f} s")


def wait_for_exit(program: subprocess.Popen[str], seconds: float) -> tuple[int, str]:
    try:
        _, errors = program.communicate(timeout=seconds)
    finally:
        program.kill()
    return program.returncode, errors


def children_of(parent: int) -> list[int]:
    """Pids of a process's children, including those started by other threads."""
    threads = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for thread in threads for pid in _read(thread).split()]


def ranks_of(parent: int) -> list[int]:
    """Pids of a process's tensor-parallel workers."""
    commands = {child: _read(Path(f"/proc/{child}/cmdline")) for child in children_of(parent)}
    return [child for child, command in commands.items() if b"join_launched_ranks" in command]


def _read(path: Path) -> bytes:
    """Reads a file; b"" if it does not exist."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def wait_until_exited(processes: Sequence[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{process}").exists() for process in processes):
            return True
        time.sleep(0.05)
    return False
