"""Server processes, each paused (SIGSTOP) while another is measured."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tiny_llm import UserError

from .http_clients import get_latency

START_SECONDS = 300
POLL_SECONDS = 0.005


class ServerProcess:
    """A running server process.

    Args:
        command: command line; `{port}` is replaced by its port.
        path: URL path that returns 200 once the server is ready.

    Raises:
        UserError: the process exited or did not become ready.
    """

    def __init__(self, command: Sequence[str], path: str):
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        log = None if os.environ.get("BENCHMARK_DEBUG") else subprocess.DEVNULL
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [part.replace("{port}", str(port)) for part in command], stdout=log, stderr=log
        )
        try:
            while not self._is_ready(path):
                seconds = time.perf_counter() - started
                if self._process.poll() is not None or seconds > START_SECONDS:
                    raise UserError(
                        f"`{' '.join(command)}` did not become ready; set BENCHMARK_DEBUG=1 to see "
                        "its output."
                    )
                time.sleep(POLL_SECONDS)
        except BaseException:
            self.close()
            raise
        self.ready_seconds = time.perf_counter() - started

    def _is_ready(self, path: str) -> bool:
        try:
            asyncio.run(get_latency(self.url, path))
        except (OSError, UserError):
            return False
        return True

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the process."""
        result = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(self._process.pid)], capture_output=True, check=True
        )
        return int(result.stdout) * 1024

    def pause(self) -> None:
        """Pauses the server; `running` resumes it."""
        self._process.send_signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Resumes the server, yields its URL, then pauses it again."""
        self._process.send_signal(signal.SIGCONT)
        try:
            yield self.url
        finally:
            self.pause()

    def close(self) -> None:
        """Terminates the server."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()


def our_server(model: str, *flags: str) -> ServerProcess:
    """`tiny-llm serve`; its watchdog timeout is a day, because `pause` stops the engine."""
    command = [sys.executable, "-m", "tiny_llm", "serve", "--model", model, "--port", "{port}"]
    return ServerProcess([*command, "--watchdog", "86400", *flags], "/ready")


def llama_server(binary: str, file: Path, slots: int, context: int, threads: int) -> ServerProcess:
    """llama.cpp's `llama-server` with one slot per client."""
    command = [binary, "--model", str(file), "--port", "{port}", "--host", "127.0.0.1"]
    command += ["--parallel", str(slots), "--ctx-size", str(slots * context)]
    command += ["--threads", str(threads), "--threads-batch", str(threads)]
    return ServerProcess(command, "/health")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
