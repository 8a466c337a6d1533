"""Groups in processes of their own, for tests in which they are lost."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

# Answers without end; each line says that an answer is there.
ANSWERING = """
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
        [sys.executable, "-c", ANSWERING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "answered\n"
    time.sleep(seconds_before)
    return program, children_of(program.pid)


def end_of_group(program: subprocess.Popen[str], seconds: float) -> tuple[int, str]:
    """How a program ended within so many seconds: its status, and what it said of errors."""
    try:
        _, errors = program.communicate(timeout=seconds)
    finally:
        program.kill()
    return program.returncode, errors


def children_of(parent: int) -> list[int]:
    """The processes that a process has started, in any of its threads."""
    threads = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for thread in threads for pid in thread.read_text().split()]


def wait_until_gone(processes: Sequence[int], seconds: float) -> bool:
    """Whether processes end within so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{process}").exists() for process in processes):
            return True
        time.sleep(0.05)
    return False
