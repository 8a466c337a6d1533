"""Sandboxed processes with memory and time limits: client and program.

A thread cannot be killed, but a process can. It starts on the first request and restarts after it
has been killed. Requests and responses are JSON lines. The process runs this file:

    python -P sandboxed_process.py HANDLER MAX_BYTES SECONDS ARGUMENT …

HANDLER is a Python file with a function `make_handler(ARGUMENT, …)`. It returns a function that
takes a request's fields as keywords and returns the response's fields; an exception becomes the
response's "error". Neither file imports `tiny_llm`.
"""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

STARTUP_TIMEOUT_SECONDS = 30.0  # Python starts slowly on a busy machine
WAIT_FACTOR = 10  # on a busy machine, a response takes longer than its processor time
HANDLERS = Path(__file__).with_name("sandbox_handlers.py")  # for `SandboxedProcess.handler`


@dataclass(eq=False)
class SandboxedProcess:
    """Thread-safe client of a sandboxed handler; sends one request at a time."""

    handler: Path  # Python file with `make_handler`
    arguments: Sequence[str]  # arguments of `make_handler`
    seconds: float  # limit on a response's processor time
    max_bytes: int  # size limit per response
    max_memory: int  # limit on the process's address space in bytes; not enforced on macOS

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def request(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and returns the response.

        Raises:
            ValueError: the handler failed or exceeded its time or memory limit.
            TypeError: the payload is not JSON-serializable.
        """
        line = json.dumps(payload).encode() + b"\n"
        with self._lock:
            try:
                if self._process is None or self._process.poll() is not None:
                    self._start()
                reply = self._exchange(line, WAIT_FACTOR * self.seconds)
                response: dict[str, Any] = json.loads(reply)
            except (ValueError, BrokenPipeError):
                self._stop()  # the process may hang, or answer a later request with this response
                raise
        if "error" in response:
            raise ValueError(response["error"])
        return response

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _start(self) -> None:
        self._stop()
        limits = [str(self.handler), str(self.max_memory), str(self.seconds)]
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, *limits, *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Without LD_PRELOAD, because a preloaded sanitizer would exceed the memory limit.
            env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
        )
        ready = json.loads(self._exchange(b"", STARTUP_TIMEOUT_SECONDS))
        if "error" in ready:
            raise ValueError(ready["error"])

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _exchange(self, line: bytes, seconds: float) -> bytes:
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
                if not chunk and self._process.wait() == -signal.SIGPROF:
                    raise ValueError(f"it took longer than {self.seconds:.3g} seconds")
                if not chunk:
                    raise ValueError("it used too much memory")
                received += chunk
            if len(received) > self.max_bytes:
                raise ValueError(f"the response has more than {self.max_bytes:,} bytes")
        return bytes(received)


def main() -> None:
    """Writes a response once the handler is loaded, then one for each request."""
    file, max_bytes, seconds, *arguments = sys.argv[1:]
    _limit_memory(2 * int(max_bytes))  # loading may take more memory than requests do
    try:
        handler = _load(file, arguments)
    except BaseException as error:  # a panic in a library's Rust code is not an Exception
        _respond({"error": _describe(error)})
        return
    _limit_memory(int(max_bytes))
    _respond({})
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, float(seconds))  # its signal ends the process
        try:
            response = handler(**json.loads(line))
        except BaseException as error:
            response = {"error": _describe(error)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        _respond(response)


def _load(file: str, arguments: Sequence[str]) -> Callable[..., dict[str, Any]]:
    spec = spec_from_file_location("handler", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    handler: Callable[..., dict[str, Any]] = module.make_handler(*arguments)
    return handler


def _describe(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "it used too much memory"
    if isinstance(error, RecursionError):
        return "its calls are nested too deeply"
    return " ".join(str(error).split()) or type(error).__name__


def _respond(response: dict[str, Any]) -> None:
    print(json.dumps(response), flush=True)


def _limit_memory(num_bytes: int) -> None:
    with suppress(ValueError, OSError):  # macOS does not support this limit
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))


if __name__ == "__main__":
    main()
