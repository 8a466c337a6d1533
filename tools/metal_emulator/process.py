"""Child process that runs a library's kernels; reports faults and counts."""

import contextlib
import mmap
import os
import select
import signal
import struct
import subprocess
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .arguments import Argument, Parameter

ORDERS = {"forward": 0, "reverse": 1, "random": 2}
PAGE, ALIGNMENT = 4096, 16  # bytes, as in runtime/memory.cpp
SEPARATOR = "\x1f"


def _round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def _file_offsets(arguments: Sequence[Argument]) -> tuple[list[int], int]:
    """Byte offsets of the arguments in the shared file, and the file's size.

    An array that is bound twice and written is stored once, so that both bindings share memory.
    """
    offsets, end = [], 0
    known: dict[tuple[int, int], int] = {}
    for argument in arguments:
        offset, target = end, argument.target
        if target is not None and target.size:
            memory = (target.__array_interface__["data"][0], argument.data.nbytes)
            offset = known.setdefault(memory, end)
        offsets.append(offset)
        if offset == end:
            end += _round_up(max(_round_up(argument.data.nbytes, ALIGNMENT), 1), PAGE)
    return offsets, end


class Process:
    """Runs launches of a compiled program, which forks a child for each launch.

    Buffers are in a file that Python and the child map. A buffer occupies complete pages of the
    file and ends less than 16 bytes before the end of its last page. The child maps an inaccessible
    page after it, so that an access beyond the buffer is a fault.
    """

    def __init__(self, executable: Path):
        self.executable = executable
        self._file = tempfile.TemporaryFile(prefix="metal-", dir=_memory_folder())  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(executable), str(self._file.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a process group, so that close() also kills the children
            pass_fds=[self._file.fileno()],
            env=_environment(),
        )
        self._size = 0
        self._output = b""
        self._finalizer = weakref.finalize(self, _stop, self._process, self._file)

    def run(
        self,
        kernel: int,
        arguments: Sequence[Argument],
        grid: tuple[int, int, int],
        threads: tuple[int, int, int],
        in_threads: bool,
        memory: Sequence[tuple[int, int]],
        order: str,
        seed: int,
        timeout: float,
    ) -> list[list[str]]:
        """Runs one launch and updates the bound arrays.

        Args:
            kernel: number of the kernel, from `describe`.
            grid: number of threadgroups or, if `in_threads`, of threads.
            threads: threads per threadgroup.
            memory: (index, bytes) of each `[[threadgroup(index)]]`.
            order, seed: see `Library.launch`.
            timeout: in seconds.

        Returns:
            The launch's output lines, split into fields: a fault, or counts in mode "count".
        """
        offsets, end = _file_offsets(arguments)
        if end > self._size:
            os.ftruncate(self._file.fileno(), end)
            self._size = end
        message = struct.pack(
            "<12I",
            kernel,
            ORDERS[order],
            seed,
            in_threads,
            *grid,
            *threads,
            len(arguments),
            len(memory),
        )
        starts = []
        for argument, offset in zip(arguments, offsets, strict=True):
            size = argument.data.nbytes
            used = _round_up(size, ALIGNMENT)
            starts.append(offset + max(_round_up(used, PAGE), PAGE) - used)
            parameter = argument.parameter
            constant_space = parameter.constant_space
            message += struct.pack(
                "<5Q", parameter.index, offset, size, constant_space, argument.lead
            )
        for index, size in memory:
            message += struct.pack("<2Q", index, size)
        if end == 0:
            return self._exchange(message, timeout)
        with mmap.mmap(self._file.fileno(), end) as shared:
            view = np.frombuffer(shared, np.uint8)
            for argument, start in zip(arguments, starts, strict=True):
                view[start : start + argument.data.nbytes] = argument.data
            lines = self._exchange(message, timeout)
            for argument, start in zip(arguments, starts, strict=True):
                target = argument.target
                if target is not None and target.size:
                    written = view[start : start + argument.data.nbytes].view(target.dtype)
                    target[...] = written.reshape(target.shape)
                    del written
            del view
        return lines

    def _exchange(self, message: bytes, timeout: float) -> list[list[str]]:
        assert self._process.stdin is not None
        self._process.stdin.write(message)
        self._process.stdin.flush()
        lines, deadline = [], time.monotonic() + timeout
        while True:
            line = self._read_line(deadline)
            if line is None:
                self.close()
                return [
                    [
                        "fault",
                        "timeout",
                        f"the launch did not finish within {timeout:g} s",
                        "",
                        "0",
                        "0",
                        "0",
                    ]
                ]
            parts = line.split(SEPARATOR)
            if not parts[0].startswith("end"):
                lines.append(parts)
                continue
            status = int(parts[0].split()[1])
            if status != 0 and not lines:
                text = f"the launch's process exited with status {status}"
                lines.append(["fault", "crash", text, "", "0", "0", "0"])
            return lines

    def _read_line(self, deadline: float) -> str | None:
        """Next output line of the server; "end -1" if it exited, None after a timeout."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._output:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                return None
            data = os.read(pipe, 65536)
            if not data:
                return "end -1"
            self._output += data
        line, self._output = self._output.split(b"\n", 1)
        return line.decode()

    @property
    def alive(self) -> bool:
        """Whether the server can run another launch."""
        return self._finalizer.alive and self._process.poll() is None

    def close(self) -> None:
        """Kills the server and its children."""
        self._finalizer()


ASAN_OPTIONS = "detect_leaks=0:handle_segv=0:handle_sigbus=0:handle_sigill=0:handle_sigfpe=0"
ASAN_OPTIONS += ":handle_sigtrap=0:detect_stack_use_after_return=0:symbolize=0:log_path=/dev/null"


def _memory_folder() -> str | None:
    """Folder of an in-memory file system; None (the default temporary folder) if unavailable."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _environment() -> dict[str, str]:
    """This process's environment without LD_PRELOAD, which may load a sanitizer."""
    inherited = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return {**inherited, "ASAN_OPTIONS": ASAN_OPTIONS}


def _stop(process: subprocess.Popen[bytes], file: object) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    file.close()  # type: ignore[attr-defined]


def describe(executable: Path) -> dict[str, tuple[int, int, list[Parameter]]]:
    """Kernels of a compiled program, by host name.

    Returns (number, declared maximum of threads per threadgroup or 0, parameters) of each.
    """
    command = [str(executable), "describe"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment())
    kernels: dict[str, tuple[int, int, list[Parameter]]] = {}
    for line in output.stdout.splitlines():
        kind, name, *rest = line.split()
        if kind == "kernel":
            parameters: list[Parameter] = []
            kernels[name] = (len(kernels), int(rest[0]), parameters)
        else:
            binding, index, element, element_size, size, *flags = rest
            sizes = int(index), element, int(element_size), int(size)
            parameters.append(Parameter(name, binding, *sizes, *(f == "1" for f in flags)))
    return kernels
