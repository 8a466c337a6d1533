"""Chat templates in a process of their own, with bounds on time and memory.

A template is a program that came with the weights. Jinja's sandbox keeps it from files and from
Python's insides, but not from running for ever or taking all memory: `{% for i in range(99999) %}`
four times inside itself is enough. A server cannot stop a thread, but it can stop a process.

The process runs `chat_template.py` and nothing else of this package. It starts with the first
conversation, and again after it had to be stopped.
"""

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("chat_template.py")
SECONDS_TO_START = 30.0  # not the template's: on a busy machine Python takes its time


class TemplateProcess:
    """Renders conversations. May be used by several threads, which wait for each other.

    Args:
        seconds: that a conversation may take.
        num_bytes: memory of the process. macOS does not enforce it; there only time is bounded.
        max_characters: of the text that comes out.
    """

    def __init__(
        self, seconds: float = 2.0, num_bytes: int = 2**29, max_characters: int = 2**24
    ) -> None:
        self._seconds = seconds
        self._num_bytes = num_bytes
        self._max_characters = max_characters
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, template: str, messages: Sequence[Mapping[str, Any]], **rest: Any) -> str:
        """As `chat_template.render_chat`, within the bounds.

        Raises:
            ValueError: the template refuses the conversation, or takes too much time or memory.
            TypeError: the conversation is more than plain data.
        """
        given = {"template": template, "messages": list(messages), "rest": rest}
        line = json.dumps(given).encode() + b"\n"
        with self._lock:
            try:
                if self._process is None or self._process.poll() is not None:
                    self._start()
                answer = json.loads(self._exchange(line, self._seconds))
            except (ValueError, BrokenPipeError):
                self._stop()  # it is in the middle of something
                raise
        if "error" in answer:
            raise ValueError(answer["error"])
        text: str = answer["text"]
        return text

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        self._stop()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM), str(self._num_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._exchange(b"", SECONDS_TO_START)  # it says that it is ready

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
                raise ValueError(f"it takes more than {seconds:g} seconds")
            if can_write:
                line = line[os.write(into, line[:65536]) :]
            if can_read:
                piece = os.read(out, 65536)
                if not piece:
                    raise ValueError("it takes too much memory")
                received += piece
            if len(received) > 6 * self._max_characters:  # \\u0000 is the longest for one
                raise ValueError(f"its text has more than {self._max_characters} characters")
        return bytes(received)
