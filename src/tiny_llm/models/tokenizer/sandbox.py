"""Sandboxed processes with time limits; one of them renders chat templates.

A thread cannot be killed, but a process can. Requests and responses are JSON lines. The process
starts on the first request and restarts after it has been killed.

A chat template is an untrusted program. Jinja's sandbox blocks access to files and Python
internals, but prevents neither endless loops nor memory exhaustion: nested
`{% for i in range(99999) %}` suffice. Templates are therefore rendered by a process that runs
`chat_template_main.py`, without the rest of this package.
"""

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

STARTUP_TIMEOUT_SECONDS = 30.0  # for Python on a busy machine

TIMEOUT_SECONDS = 2.0  # per conversation
MAX_MEMORY_BYTES = 2**29
PROGRAM = Path(__file__).with_name("chat_template_main.py")


@dataclass(eq=False)
class SandboxedProcess:
    """Client of a sandboxed program. Thread-safe; requests are serialized."""

    # Python file. Writes a JSON object once ready, then one per request; on failure, the object has
    # the key "error".
    program: Path
    arguments: Sequence[str]
    seconds: float  # time limit per response
    max_bytes: int  # size limit per response
    startup_seconds: float = STARTUP_TIMEOUT_SECONDS  # time limit for startup

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def request(self, payload: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """Sends a request and returns the response.

        Args:
            seconds: time limit for this response; None for the default.

        Raises:
            ValueError: the program failed or exceeded its time or memory limit.
            TypeError: the payload is not JSON-serializable.
        """
        line = json.dumps(payload).encode() + b"\n"
        with self._lock:
            try:
                if self._process is None or self._process.poll() is not None:
                    self._start()
                reply = self._exchange(line, seconds or self.seconds)
                response: dict[str, Any] = json.loads(reply)
            except (ValueError, BrokenPipeError):
                self._stop()  # the program's state is unknown
                raise
        if "error" in response:
            raise ValueError(response["error"])
        return response

    def start(self) -> None:
        """Starts the program and waits until it is ready."""
        with self._lock:
            try:
                self._start()
            except ValueError:
                self._stop()
                raise

    def close(self) -> None:
        """Kills the process."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        self._stop()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(self.program), *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # A preloaded sanitizer would exceed the memory limit.
            env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
        )
        ready = json.loads(self._exchange(b"", self.startup_seconds))
        if "error" in ready:
            raise ValueError(ready["error"])

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _exchange(self, line: bytes, seconds: float) -> bytes:
        """Sends a line of JSON and receives the response's line."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        stdin, stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(stdin, False)
        received, unsent = bytearray(), memoryview(line)
        while not received.endswith(b"\n"):
            remaining = deadline - time.monotonic()
            poll = select.poll()  # unlike `select`, supports descriptors above 1023
            poll.register(stdout, select.POLLIN)
            if unsent:
                poll.register(stdin, select.POLLOUT)
            ready = {file for file, _ in poll.poll(max(0, remaining) * 1000)}
            if remaining <= 0 or not ready:
                raise ValueError(f"it took longer than {seconds:.3g} seconds")
            if stdin in ready:
                unsent = unsent[os.write(stdin, unsent[:65536]) :]
            if stdout in ready:
                chunk = os.read(stdout, 65536)
                if not chunk:
                    raise ValueError("it used too much memory")
                received += chunk
            if len(received) > self.max_bytes:
                raise ValueError(f"the response has more than {self.max_bytes:,} bytes")
        return bytes(received)


class ChatTemplateSandbox:
    """Renders conversations. Thread-safe; calls are serialized.

    Args:
        seconds: time limit per conversation.
        num_bytes: memory limit of the process, in bytes; not enforced on macOS.
        max_bytes: size limit of the rendered text, encoded as JSON.
    """

    def __init__(
        self,
        seconds: float = TIMEOUT_SECONDS,
        num_bytes: int = MAX_MEMORY_BYTES,
        max_bytes: int = 2**25,
    ) -> None:
        self.process = SandboxedProcess(PROGRAM, [str(num_bytes)], seconds, max_bytes)

    def render(self, template: str, messages: Sequence[Mapping[str, Any]], **rest: Any) -> str:
        """Same as `chat_template_main.render_chat`, within the limits.

        Raises:
            ValueError: the template rejects the conversation or exceeds the limits.
            TypeError: the conversation is not JSON-serializable.
        """
        payload = {"template": template, "messages": list(messages), "rest": rest}
        text: str = self.process.request(payload)["text"]
        return text


def render_sandboxed(template: str, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
    """Renders a conversation in the process shared by all tokenizers.

    See `ChatTemplateSandbox.render` for arguments and errors.
    """
    return default_sandbox().render(template, messages, **variables)


@cache
def default_sandbox() -> ChatTemplateSandbox:
    """Shared sandbox for `render_sandboxed`."""
    return ChatTemplateSandbox()
