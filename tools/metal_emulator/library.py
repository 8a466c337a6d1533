"""Library of kernels compiled from a .metal file, with launches."""

import os
import random
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import compiler
from .arguments import Bindable, Parameter, bind
from .counts import Counts, read_counts
from .errors import Diagnostic, MetalFault
from .process import ORDERS, Process, describe

MAX_THREADS = 1024
MIN_ALLOWED = 384  # smallest maxTotalThreadsPerThreadgroup of a GPU in mode "loose"


class Launch:
    """A completed launch, whose results are in the bound arrays."""

    def __init__(self, kernel: str, counts: Counts | None):
        self.kernel = kernel
        self._counts = counts

    @property
    def counts(self) -> Counts:
        """Operation counts; available only with mode="count"."""
        if self._counts is None:
            raise ValueError('counts require mode="count"')
        return self._counts


class Library:
    """Kernels of a .metal file, type-checked and compiled for this machine's CPU.

    `defines` are macros, `function_constants` the values of `[[function_constant(i)]]` by index or
    name. Raises `MetalError` with the locations of all errors, `ToolMissingError` without clang.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        include_dirs: Sequence[str | os.PathLike[str]] = (),
        defines: Mapping[str, object] | None = None,
        function_constants: Mapping[int | str, object] | None = None,
    ):
        self.path = Path(path)
        self._source = compiler.prepare(
            self.path,
            [Path(folder) for folder in include_dirs],
            defines or {},
            function_constants or {},
        )
        program = compiler.compile_program(self._source, "plain")
        self.warnings: list[Diagnostic] = program.warnings
        self._described = describe(program.executable)
        self._processes: dict[str, Process] = {}

    @property
    def kernels(self) -> list[str]:
        """Host names of the kernels, in file order."""
        return list(self._described)

    def parameters(self, kernel: str) -> list[Parameter]:
        """Buffer and threadgroup parameters of a kernel."""
        return self._kernel(kernel)[2]

    def max_threads(self, kernel: str) -> int:
        """Declared maximum of a kernel's threads per threadgroup; 0 if undeclared."""
        return self._kernel(kernel)[1]

    def _kernel(self, name: str) -> tuple[int, int, list[Parameter]]:
        if name not in self._described:
            known = ", ".join(self.kernels) or "none"
            raise ValueError(f"{self.path.name} has no kernel '{name}'; it has: {known}")
        return self._described[name]

    def launch(
        self,
        kernel: str,
        arguments: Sequence[Bindable] | Mapping[int, Bindable],
        *,
        threads: tuple[int, int, int],
        grid: tuple[int, int, int] | None = None,
        grid_threads: tuple[int, int, int] | None = None,
        threadgroup_memory: Mapping[int, int] | None = None,
        mode: str = "plain",
        order: str = "forward",
        seed: int = 1,
        timeout: float = 600,
    ) -> Launch:
        """Runs a kernel on NumPy arrays, which are modified in place.

        `grid` counts threadgroups of `threads` threads, as in dispatchThreadgroups; `grid_threads`
        counts threads, as in dispatchThreads: the last threadgroups may be smaller.
        `threadgroup_memory` is the size in bytes of each `[[threadgroup(i)]]`. `mode` is "plain",
        "asan", "race", "count" or "loose" (relaxed arithmetic as on a GPU, by `seed`); `order`
        of lanes, simdgroups and threadgroups is "forward", "reverse" or "random" (by `seed`;
        threadgroups run forward). Raises `MetalFault` for a fault of the kernel.
        """
        number, limit, parameters = self._kernel(kernel)
        if (grid is None) == (grid_threads is None):
            raise ValueError("a launch requires either grid (threadgroups) or grid_threads")
        if mode not in compiler.MODES:
            raise ValueError(f"mode must be one of {', '.join(compiler.MODES)}, got {mode!r}")
        if order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        size = grid if grid is not None else grid_threads
        assert size is not None
        self._check_threads(kernel, threads, limit)
        if mode == "loose":
            self._check_pipeline(kernel, threads, seed)
        memory = self._check_memory(kernel, parameters, threadgroup_memory or {})
        try:
            bound = bind(parameters, arguments)
        except ValueError as error:
            raise MetalFault("wrong-argument", kernel, str(error)) from None
        process = self._process(mode)
        lines = process.run(
            number, bound, _three(size), _three(threads), grid is None, memory, order, seed, timeout
        )
        for line in lines:
            if line[0] == "fault":
                raise self._fault(kernel, process.executable, line)
        return Launch(kernel, read_counts(lines))

    def _check_threads(self, kernel: str, threads: tuple[int, int, int], limit: int) -> None:
        x, y, z = _three(threads)
        if not 0 < x * y * z <= MAX_THREADS:
            text = f"a threadgroup of {x} × {y} × {z} = {x * y * z} threads; a GPU allows 1 to 1024"
            raise MetalFault("too-many-threads", kernel, text)
        if limit and x * y * z > limit:
            text = f"{x * y * z} threads; the kernel's max_total_threads_per_threadgroup is {limit}"
            raise MetalFault("too-many-threads", kernel, text)

    def threads_allowed(self, kernel: str, seed: int) -> int:
        """Maximum threads per threadgroup in mode "loose", random by kernel and seed.

        A GPU allows fewer than 1024 if a kernel has many registers (maxTotalThreadsPerThreadgroup).
        """
        drawn = random.Random(f"{kernel} {seed}").randrange(MIN_ALLOWED, MAX_THREADS + 1, 32)
        return max(drawn, self.max_threads(kernel))

    def _check_pipeline(self, kernel: str, threads: tuple[int, int, int], seed: int) -> None:
        x, y, z = _three(threads)
        allowed = self.threads_allowed(kernel, seed)
        if x * y * z > allowed:
            text = f"{x * y * z} threads; with seed {seed} this kernel may have at most {allowed}"
            raise MetalFault("too-many-threads", kernel, text)

    def _check_memory(
        self, kernel: str, parameters: list[Parameter], given: Mapping[int, int]
    ) -> list[tuple[int, int]]:
        wanted = {p.index: p.name for p in parameters if p.binding == "threadgroup"}
        for index, name in wanted.items():
            if given.get(index, 0) <= 0:
                text = f"threadgroup({index}) '{name}' requires a size in threadgroup_memory"
                raise MetalFault("wrong-argument", kernel, text)
        for index, size in given.items():
            if index not in wanted:
                text = f"threadgroup_memory has index {index}, which the kernel does not declare"
                raise MetalFault("wrong-argument", kernel, text)
            if size % 16:
                text = f"threadgroup({index}) must have a multiple of 16 bytes, got {size}"
                raise MetalFault("wrong-argument", kernel, text)
        return sorted(given.items())

    def _process(self, mode: str) -> Process:
        process = self._processes.get(mode)
        if process is None or not process.alive:
            program = compiler.compile_program(self._source, mode)
            process = self._processes[mode] = Process(program.executable)
        return process

    def _fault(self, kernel: str, executable: Path, line: list[str]) -> MetalFault:
        _, kind, message, file, number, pc, other = line
        location = (file, int(number))
        if not file and int(pc, 16):
            location = _source_location(executable, int(pc, 16))
        if "{other}" in message:
            other_file, other_line = _source_location(executable, int(other, 16))
            same = other_file == location[0]
            message = message.replace(
                "{other}", f"line {other_line}" if same else f"{other_file}:{other_line}"
            )
        return MetalFault(kind, kernel, message, *location)


def _three(size: Sequence[int]) -> tuple[int, int, int]:
    """Pads sizes to three dimensions with ones."""
    x, y, z = (*size, 1, 1)[:3]
    return int(x), int(y), int(z)


def _source_location(executable: Path, address: int) -> tuple[str, int]:
    """Source file and line of an instruction, outside inlined functions of the emulator."""
    command = ["addr2line", "-i", "-e", str(executable), hex(address)]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return "(install binutils to see the line)", 0
    for line in output.splitlines():
        match = re.match(r"(.*):(\d+)", line)
        if match and match[2] != "0" and not match[1].startswith(str(compiler.HERE)):
            return match[1], int(match[2])
    return "", 0
