"""The outside of a worker's process: starts it, asks it, and stops it while others are measured."""

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
    """A worker did not start, ended, or took too long; the sentence says which."""


@dataclass(frozen=True)
class Ready:
    """What a worker said when its first token was there.

    Attributes:
        process_seconds: since the process was started.
        peak_bytes: the most memory resident until then.
        about: version and settings.
        weight_bits: of a weight in memory.
    """

    process_seconds: float
    peak_bytes: int
    about: str
    weight_bits: float


class WorkerProcess:
    """A running worker. It is stopped (SIGSTOP) whenever it is not asked anything.

    So its threads cannot disturb another system's measurement, whatever they wait for and how.

    Args:
        python: the interpreter.
        module: the worker's name in `benchmark.systems`.
        arguments: its command line.
        root: the tree whose worker it is.
        environment: of the process; this one's if not given.

    Raises:
        WorkerError: it did not get ready.
    """

    def __init__(
        self,
        python: str,
        module: str,
        arguments: list[str],
        root: Path = ROOT,
        environment: Mapping[str, str] | None = None,
    ):
        threads = str(usable_threads())
        start = time.perf_counter()
        self._name = module.removesuffix("_worker")
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
        said = self._read(START_SECONDS)
        self.ready = Ready(process_seconds=time.perf_counter() - start, **said)
        self._process.send_signal(signal.SIGSTOP)

    def ask(self, request: dict[str, Any], limit_s: float = START_SECONDS) -> dict[str, Any]:
        """Sends a request and waits for its reply.

        Raises:
            WorkerError: the worker ended or took longer than `limit_s`; it is gone then.
        """
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        reply = self._read(limit_s)
        self._process.send_signal(signal.SIGSTOP)
        return reply

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
        self._selector.close()

    def _read(self, limit_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not self._selector.select(limit_s):
            self.close()
            raise WorkerError(f"took more than {limit_s:.0f} s")
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        _, complaint = self._process.communicate()
        self._selector.close()
        lines = (complaint or b"").decode(errors="replace").strip().splitlines()
        raise WorkerError(f"{self._name} ended: {lines[-1] if lines else 'it said nothing'}")


def export_once(python: str, module: str, source: Path, folder: Path, exact: bool = False) -> None:
    """Has a system's own exporter quantize a plain folder, if it has not yet.

    Args:
        python: an interpreter that has the exporter.
        module: the worker's name in `benchmark.systems`.
        source: a plain Hugging Face folder.
        folder: is made.
        exact: whether the system is to keep activations in float32.

    Raises:
        WorkerError: the exporter failed.
    """
    if (folder / "exported").exists():  # what is written last
        return
    folder.mkdir(exist_ok=True)
    command = [python, "-m", f"benchmark.systems.{module}", str(folder), "--export", str(source)]
    command += ["--exact"] if exact else []
    done = subprocess.run(command, cwd=ROOT, stdout=sys.stderr)
    if done.returncode:
        raise WorkerError(f"{module.removesuffix('_worker')} did not export {source}")
    (folder / "exported").touch()


def checkpoint_bytes(path: Path) -> int:
    """The size of a checkpoint's weights: a folder's files, or one file."""
    endings = {".safetensors", ".bin", ".data"}  # the last two: OpenVINO's and ONNX's
    files = [f for f in path.iterdir() if f.suffix in endings] if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def exit_on_sigterm() -> None:
    """Has a SIGTERM unwind this process: its workers are stopped, and would stay so for ever."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
