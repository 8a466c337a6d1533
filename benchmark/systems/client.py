"""Parent side of a worker: starts it, sends requests, pauses it."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.roofline import usable_threads

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 180


class WorkerError(Exception):
    """A worker failed to start, exited, timed out or failed to serve a request."""


class WorkerTimeoutError(WorkerError):
    """A worker exceeded a time limit and has been killed."""


@dataclass(frozen=True)
class Ready:
    """Startup message of a worker, sent after its first token."""

    process_seconds: float  # time from the start of the process to the message
    peak_bytes: int  # peak resident memory up to the message
    about: str  # version and settings
    weight_bits: float  # bits per weight in memory


class WorkerProcess:
    """A running worker, paused (SIGSTOP) between requests.

    A paused worker cannot disturb another system's measurement, even if its threads busy-wait.

    Args:
        module: name of the worker in `benchmark.systems`.
        root: checkout that contains the worker.
        environment: environment variables of the worker; default: this process's.
        name: prefix of error messages; default: derived from the module.

    Raises:
        WorkerError: the worker did not become ready.
    """

    def __init__(
        self,
        python: str,
        module: str,
        arguments: list[str],
        root: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        name: str | None = None,
    ):
        threads = str(usable_threads())
        start = time.perf_counter()
        self._name = name or module.removesuffix("_worker")
        self._process = subprocess.Popen(
            [python, "-m", f"benchmark.systems.{module}", *arguments],
            cwd=root,
            env={
                **(environment or os.environ),
                "OMP_NUM_THREADS": threads,
                "TINY_LLM_NUM_THREADS": threads,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if not os.environ.get("BENCHMARK_DEBUG") else None,
        )
        self._selector = selectors.DefaultSelector()
        assert self._process.stdout is not None
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        message = self._read(START_SECONDS)
        self.ready = Ready(process_seconds=time.perf_counter() - start, **message)
        self._process.send_signal(signal.SIGSTOP)

    def ask(self, request: dict[str, Any], limit_s: float = START_SECONDS) -> dict[str, Any]:
        """Sends a request and waits for its reply: a result or a failure's reason.

        Raises:
            WorkerError: the worker exited or exceeded `limit_s`, and has been killed.
        """
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):  # `_read` reports that the worker has exited
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        reply = self._read(limit_s)
        self._process.send_signal(signal.SIGSTOP)
        return reply

    def run(self, request: dict[str, Any], limit_s: float = START_SECONDS) -> dict[str, Any]:
        """Sends a request and waits for its result.

        Raises:
            WorkerError: as in `ask`, or the reply is not a result.
        """
        reply = self.ask(request, limit_s)
        for key in ("failed", "unsupported"):
            if key in reply:
                raise WorkerError(f"{self._name}: {reply[key]}")
        return reply

    def close(self) -> None:
        """Kills the process."""
        self._process.kill()
        self._process.communicate()
        self._selector.close()

    def _read(self, limit_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not self._selector.select(limit_s):
            self.close()
            raise WorkerTimeoutError(f"{self._name} timed out after {limit_s:.0f} s")
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        _, stderr = self._process.communicate()
        self._selector.close()
        lines = (stderr or b"").decode(errors="replace").strip().splitlines()
        raise WorkerError(f"{self._name} exited: {lines[-1] if lines else 'no output'}")


def export_once(python: str, module: str, source: Path, folder: Path, exact: bool = False) -> None:
    """Exports a checkpoint, quantized by a system's exporter, unless done before.

    Args:
        python: an interpreter with the exporter.
        module: name of the worker in `benchmark.systems`.
        exact: whether activations stay float32.

    Raises:
        WorkerError: the exporter failed.
    """
    if (folder / "exported").exists():  # written last: marks a complete export
        return
    folder.mkdir(exist_ok=True)
    command = [python, "-m", f"benchmark.systems.{module}", str(folder), "--export", str(source)]
    command += ["--exact"] if exact else []
    done = subprocess.run(command, cwd=ROOT, stdout=sys.stderr)
    if done.returncode:
        raise WorkerError(f"{module.removesuffix('_worker')} failed to export {source}")
    (folder / "exported").touch()


def checkpoint_bytes(path: Path) -> int:
    """Bytes of weights in a checkpoint folder, or size of a checkpoint file."""
    suffixes = {".safetensors", ".bin", ".data"}  # .bin is OpenVINO's suffix, .data ONNX's
    files = [f for f in path.iterdir() if f.suffix in suffixes] if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def exit_on_sigterm() -> None:
    """Turns SIGTERM into an exception, so that `finally` kills paused workers."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
