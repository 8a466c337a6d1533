"""A program in a process of its own, which is stopped when it takes too long.

A server cannot stop a thread, but it can stop a process. Questions and answers are JSON, a line
each. The process starts with the first question, and again after it had to be stopped.
"""

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STARTUP_TIMEOUT_SECONDS = 30.0  # on a busy machine Python takes its time


class SandboxedProcess:
    """Asks a program. May be used by several threads, which wait for each other.

    Args:
        program: a file in Python. It writes a line when it is ready, and then one for each that it
            reads: an object, with "error" if there is no answer.
        arguments: of the program.
        seconds: that an answer may take.
        max_bytes: of an answer.
    """

    def __init__(
        self, program: Path, arguments: Sequence[str], seconds: float, max_bytes: int
    ) -> None:
        self._program = program
        self._arguments = arguments
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def request(self, payload: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """The answer to a question.

        Args:
            payload: plain data.
            seconds: that this answer may take; those of the process if None.

        Raises:
            ValueError: the program has no answer, or takes too much time or memory.
            TypeError: the question is more than plain data.
        """
        line = json.dumps(payload).encode() + b"\n"
        with self._lock:
            try:
                if self._process is None or self._process.poll() is not None:
                    self._start()
                response: dict[str, Any] = json.loads(
                    self._exchange(line, seconds or self._seconds)
                )
            except (ValueError, BrokenPipeError):
                self._stop()  # it is in the middle of something
                raise
        if "error" in response:
            raise ValueError(response["error"])
        return response

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        self._stop()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(self._program), *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # A sanitizer that was loaded first needs more memory than the program may have.
            env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
        )
        self._exchange(b"", STARTUP_TIMEOUT_SECONDS)  # it says that it is ready

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _exchange(self, line: bytes, seconds: float) -> bytes:
        """Sends a line and returns the one that comes back."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        into, out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(into, False)
        received = bytearray()
        while not received.endswith(b"\n"):
            left = deadline - time.monotonic()
            can_read, can_write, _ = select.select([out], [into] if line else [], [], max(0, left))
            if left <= 0 or not (can_read or can_write):
                raise ValueError(f"it takes more than {seconds:.3g} seconds")
            if can_write:
                line = line[os.write(into, line[:65536]) :]
            if can_read:
                piece = os.read(out, 65536)
                if not piece:
                    raise ValueError("it takes too much memory")
                received += piece
            if len(received) > self._max_bytes:
                raise ValueError(f"the answer has more than {self._max_bytes} bytes")
        return bytes(received)
