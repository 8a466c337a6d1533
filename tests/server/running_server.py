"""Server in a subprocess, started through the command line."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

if TYPE_CHECKING:
    import anthropic
    import openai

ROOT = Path(__file__).resolve().parents[2]


class RunningServer:
    """`tiny-llm serve` on a free port, by default with the demo model.

    As a context manager, stops the server and asserts that it exits with status 0.

    Args:
        fault: name of a fault in `fault_injection.py`, or None.
        script: script file for `scripted_model.py`, or None.
        ready: whether to wait until the model has loaded.
    """

    def __init__(
        self,
        *flags: str | bytes,
        fault: str | None = None,
        script: Path | None = None,
        ready: bool = True,
        max_files: int | None = None,
    ):
        module = ["tiny_llm", "serve"] if fault is None else ["tests.server.fault_injection", fault]
        if script is not None:
            module = ["tests.server.scripted_model", str(script)]
        model = [] if "--model" in flags else ["--model", "demo"]
        command = [sys.executable, "-m", *module, *model, "--port", "0", *flags]
        if max_files is not None:
            command = ["sh", "-c", f'ulimit -n {max_files}; exec "$@"', "sh", *command]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._arrived = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self.url = self.wait_for(r"listening: (http://\S+)")
        if ready:
            self.wait_for("ready: ")

    def __enter__(self) -> "RunningServer":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.stop() == 0, "".join(self.lines[-60:])

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in chain(self.process.stderr, ["(end of the log)"]):
            with self._arrived:
                self.lines.append(line)
                self._arrived.notify_all()

    def wait_for(self, pattern: str) -> str:
        """Waits for a log line that matches; returns group 1 if any, else the match."""
        num_searched = 0
        with self._arrived:
            while True:
                for line in self.lines[num_searched:]:
                    match = re.search(pattern, line)
                    if match:
                        return match[1] if match.re.groups else match[0]
                    assert "(end of the log)" not in line, "".join(self.lines)
                num_searched = len(self.lines)
                assert self._arrived.wait(120), "".join(self.lines)

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(self.url + path, timeout=30)

    def post(self, path: str, body: object, **options: object) -> httpx2.Response:
        return httpx2.post(self.url + path, json=body, timeout=120, **options)

    def send(self, path: str, content: Any, **headers: str) -> httpx2.Response:
        """Posts bytes, or an iterator of chunks, as JSON."""
        headers = {"content-type": "application/json", **headers}
        return httpx2.post(self.url + path, content=content, headers=headers, timeout=120)

    def reject(self, path: str, body: object, status: int = 400, **options: object) -> str:
        """Posts a body, asserts the response's status and returns the error message."""
        response = self.post(path, body, **options)
        assert response.status_code == status, response.text
        message = response.json()["error"]["message"]
        assert message.endswith("."), message
        return message

    def connect(self, content: bytes = b"") -> socket.socket:
        """Opens a connection and sends bytes, such as those of `request_bytes`."""
        host, port = self.url.removeprefix("http://").split(":")
        connection = socket.create_connection((host, int(port)), timeout=60)
        connection.sendall(content)
        return connection

    @cached_property
    def openai(self) -> "openai.OpenAI":
        import openai

        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0)

    @cached_property
    def anthropic(self) -> "anthropic.Anthropic":
        import anthropic  # takes seconds, and few tests need it

        return anthropic.Anthropic(base_url=self.url, api_key="none", max_retries=0)

    def metric(self, name: str) -> float:
        match = re.search(rf"^tiny_llm:{name}{{[^}}]*}} (\S+)", self.get("/metrics").text, re.M)
        assert match, f"no metric {name}"
        return float(match[1])

    @property
    def is_empty(self) -> bool:
        """Whether no requests run or wait and no pages or state slots are in use."""
        names = "num_requests_running|num_requests_waiting|kv_cache_usage_perc|state_slots_used"
        metrics = self.get("/metrics").text
        values = re.findall(rf"^tiny_llm:(?:{names}){{[^}}]*}} (\S+)", metrics, re.M)
        assert len(values) >= 4, metrics
        return not any(map(float, values))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal, waits for the process to exit and returns its status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


def served(*flags: str | bytes, **options: Any) -> Any:
    """Module-scoped fixture: a `RunningServer` with these arguments."""

    @pytest.fixture(scope="module")
    def running() -> Iterator[RunningServer]:
        with RunningServer(*flags, **options) as server:
            yield server

    return running


def request_bytes(path: str, body: object, version: str = "1.1", headers: str = "") -> bytes:
    """An HTTP POST request. A body of bytes is sent as it is, others as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: x\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def read_all(connection: socket.socket) -> bytes:
    """Reads until the server closes the connection."""
    with connection, connection.makefile("rb") as response:
        return response.read()


def eventually(condition: Callable[[], bool]) -> bool:
    """Waits up to 30 s for a condition; returns whether it became true."""
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
