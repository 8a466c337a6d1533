"""Measures this machine's roofline: read bandwidth and arithmetic peaks.

    python -m benchmark.roofline

A step of a model must read its bytes and perform its operations; the slower of the two bounds its
time: the roofline. Machines differ, and shared ones vary from minute to minute, so each benchmark
measures the roofline during its run, with `probe.cpp` compiled for the kernels' instruction set,
and reports speed as a fraction of the roofline.
"""

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from tiny_llm import UserError, kernels

from .timing import percent

T = TypeVar("T")

PROBE = Path(__file__).with_name("probe.cpp")
# Buffer sizes: one that fits in the caches of large servers, and one that does not. The higher
# bandwidth is used, because the limit must also hold for models that fit in cache.
READ_BYTES = (5 << 26, 1 << 30)
SECONDS = 0.4  # duration of each measurement in seconds

NATIVE = ["-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"]
NO_AMX = ["-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16"]
# Compiler flags by value of TINY_LLM_CPU_ISA: this machine's instructions up to the named
# instruction set. "avx2" includes AVX-VNNI, which the AVX2 kernels use.
ISA_FLAGS = {
    "native": NATIVE,
    "avx2": [*NATIVE, "-mno-avx512f", *NO_AMX],
    "avx512vnni": [*NATIVE, "-mno-avx512bf16", *NO_AMX],
    "avx512": [*NATIVE, *NO_AMX],
}


class ProbeError(Exception):
    """The machine's limits could not be measured; the message has the reason."""


@dataclass(frozen=True)
class Machine:
    """Measured limits of all threads together.

    A peak is 0 if the instruction is missing.

    Attributes:
        read_gb_per_s: memory read bandwidth.
        f32_gflop_per_s: float32 fused multiply-add.
        bf16_gflop_per_s: bfloat16 dot products (`vdpbf16ps`).
        amx_gflop_per_s: tiles; 16-bit activations as two byte planes (two `tdpbsud` per product).
        int16_gflop_per_s: 16-bit integer dot products (`vpmaddwd` and an addition, or `vpdpwssd`;
            `smlal`, or two `sdot` per product).
        int8_gflop_per_s: 8-bit integer dot products, vectors or tiles, for activations rounded to 8
            bits (`vpdpbusd`, or `vpmaddubsw` and two others; `smmla`, `sdot`; `tdpbsud`).
    """

    cpu: str
    threads: int
    read_gb_per_s: float
    f32_gflop_per_s: float
    bf16_gflop_per_s: float
    amx_gflop_per_s: float
    int16_gflop_per_s: float = 0.0
    int8_gflop_per_s: float = 0.0

    @property
    def vector_gflop_per_s(self) -> float:
        """Highest peak of the float32, bfloat16 and 16-bit integer instructions."""
        return max(self.f32_gflop_per_s, self.bf16_gflop_per_s, self.int16_gflop_per_s)

    @property
    def peak_gflop_per_s(self) -> float:
        """Highest peak with activations of at least 16 bits."""
        return max(self.vector_gflop_per_s, self.amx_gflop_per_s)

    @property
    def highest_peaks(self) -> "Peaks":
        """Highest peaks, for systems that may round activations to 8 bits."""
        highest = max(self.peak_gflop_per_s, self.int8_gflop_per_s)
        return Peaks(highest, highest)

    def kernel_peaks(self, isa: str, quantized: bool = True) -> "Peaks":
        """Peaks of the instructions that the extension's kernels execute.

        An unknown or unmeasured instruction has the peak `peak_gflop_per_s`.

        Args:
            isa: instruction set of the kernels; "native" if unknown.
            quantized: whether the weights are quantized.
        """
        f32, bf16 = self.f32_gflop_per_s, self.bf16_gflop_per_s
        attention = f32
        if isa in ("avx512", "amx"):
            matmuls = self.amx_gflop_per_s if isa == "amx" and quantized else bf16
            # Scores, half of the operations, use bfloat16; weighted sums of values use float32. AMX
            # has the same peak for bfloat16 as for 16-bit integers; values take two products.
            scores, values = bf16, f32
            if isa == "amx" and self.amx_gflop_per_s:
                scores, values = self.amx_gflop_per_s, self.amx_gflop_per_s / 2
            attention = 2 / (1 / scores + 1 / values) if scores else 0
        elif isa == "native":
            matmuls = attention = 0
        else:
            matmuls = self.int16_gflop_per_s if isa != "portable" and quantized else f32
        return Peaks(matmuls or self.peak_gflop_per_s, attention or self.peak_gflop_per_s)

    def seconds(
        self, n_bytes: float, flops: float, attention: float = 0, peaks: "Peaks | None" = None
    ) -> float:
        """Lower bound on the time of a step.

        Args:
            flops: operations of matmuls with weights.
            attention: operations of attention and the delta rule.
            peaks: peaks of the instructions in use; default: `peak_gflop_per_s` for all.
        """
        peaks = peaks or self.kernel_peaks("native")
        arithmetic = flops / peaks.matmuls + attention / peaks.attention
        return max(n_bytes / self.read_gb_per_s, arithmetic) / 1e9

    def __str__(self) -> str:
        """One-line summary, printed above tables."""
        peaks = [
            f"{name} {value:,.0f}"
            for name, value in (
                ("float32", self.f32_gflop_per_s),
                ("bfloat16 dot", self.bf16_gflop_per_s),
                ("16-bit integer dot", self.int16_gflop_per_s),
                ("AMX, 16-bit activations", self.amx_gflop_per_s),
                ("8-bit integer dot", self.int8_gflop_per_s),
            )
            if value
        ]
        return (
            f"{self.cpu}, {self.threads} threads: reads {self.read_gb_per_s:.1f} GB/s; peaks in "
            f"GFLOP/s: {', '.join(peaks)}"
        )


@dataclass(frozen=True)
class Peaks:
    """Arithmetic peaks of a system's instructions, in GFLOP/s."""

    matmuls: float  # of activations with weights
    attention: float  # scores and weighted sums of values


def usable_threads() -> int:
    """Number of cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def build_probe(folder: Path, isa: str = "native") -> Callable[[], Machine]:
    """Compiles the probe; returns a function that runs it.

    Args:
        folder: folder of the binary; must exist as long as the returned function is used.
        isa: a key of `ISA_FLAGS`.

    Raises:
        ProbeError: no compiler was found, or it failed; also raised by the returned function.
    """
    candidates = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    compiler = next((name for name in candidates if name and shutil.which(name)), None)
    if compiler is None:
        raise ProbeError(
            "cannot measure this machine's limits: no C++ compiler found; install one or set CXX."
        )
    program = folder / f"probe-{isa}"
    flags = ["-std=c++20", "-O3", "-ffp-contract=fast", *ISA_FLAGS[isa], "-pthread"]
    _run([compiler, *flags, str(PROBE), "-o", str(program)])
    threads = usable_threads()

    def measure() -> Machine:
        output = _run([str(program), str(threads), str(SECONDS), *map(str, READ_BYTES)])
        measured = json.loads(output)
        return Machine(
            cpu=cpu_name(),
            threads=threads,
            read_gb_per_s=max(measured["read_bytes_per_s"].values()) / 1e9,
            f32_gflop_per_s=measured["f32_fma"] / 1e9,
            bf16_gflop_per_s=measured["bf16_dot"] / 1e9,
            amx_gflop_per_s=measured["amx_int8"] / 2e9,
            int16_gflop_per_s=measured["int16_dot"] / 1e9,
            int8_gflop_per_s=max(measured["int8_dot"], measured["amx_int8"]) / 1e9,
        )

    return measure


def measure_best(rounds: int) -> Machine:
    """Best of `rounds` measurements, some of which other processes may disturb.

    Raises:
        ProbeError: see `build_probe`.
    """
    with tempfile.TemporaryDirectory() as folder:
        probe = build_probe(Path(folder))
        machine = best([probe() for _ in range(rounds)])
    assert machine is not None
    return machine


class Limits:
    """The machine's limits, measured before and after each block of a benchmark.

    Args:
        probe: measures the limits; None if they cannot be measured.
        isa: instruction set of the kernels; see `Machine.kernel_peaks`.
    """

    def __init__(self, probe: Callable[[], Machine] | None, isa: str = "native"):
        self.isa = isa
        self._probe = probe
        self._machines = [] if probe is None else [probe()]
        self._exceeded: list[str] = []

    @property
    def machine(self) -> Machine | None:
        """Highest limits so far; None if unmeasured."""
        return best(self._machines)

    def around(self, block: Callable[[], T]) -> tuple[T, Machine | None]:
        """Runs a block; returns its result and the higher of the limits before and after it."""
        result = block()
        if self._probe is not None:
            self._machines.append(self._probe())
        return result, best(self._machines[-2:])

    def share(self, name: str, part: float, whole: float) -> str:
        """Formats a fraction of a limit as a table cell; records fractions above 100 %."""
        cell = percent(part, whole)
        if part > whole:
            self._exceeded.append(f"{name} {cell}")
        return cell

    def exit_status(self) -> int:
        """Prints the machine's limits; returns the status from `above_limits`."""
        print(self.machine or "", file=sys.stderr)
        return above_limits(self._exceeded)


def above_limits(exceeded: list[str]) -> int:
    """Exit status: 1, after a message, if shares exceeded 100 %; otherwise 0."""
    if not exceeded:
        return 0
    print(
        f"above the machine's limits: {', '.join(exceeded)}. The limits were measured "
        "while the machine was slower; rerun the benchmark.",
        file=sys.stderr,
    )
    return 1


@contextlib.contextmanager
def measured_limits() -> Iterator[Limits]:
    """Yields this machine's limits for the selected kernels' instruction set.

    Without a compiler, prints a warning and yields unmeasured limits.

    Raises:
        UserError: TINY_LLM_CPU_ISA is invalid.
    """
    isa = isa_of_kernels()
    with tempfile.TemporaryDirectory() as folder:
        try:
            limits = Limits(build_probe(Path(folder), isa if isa in ISA_FLAGS else "native"), isa)
        except ProbeError as error:
            print(error, file=sys.stderr)
            limits = Limits(None)
        yield limits


def isa_of_kernels() -> str:
    """Instruction set of the selected kernels; "native" without the extension.

    Raises:
        UserError: TINY_LLM_CPU_ISA is invalid.
    """
    if not kernels.is_built():
        return "native"
    try:
        return str(kernels.extension().instruction_set())
    except ValueError as error:
        raise UserError(str(error)) from error


def best(machines: list[Machine]) -> Machine | None:
    """Best value of each limit over several measurements; None for an empty list."""
    if not machines:
        return None
    fields = [asdict(machine) for machine in machines]
    highest = {
        name: max(field[name] for field in fields) for name in fields[0] if name.endswith("_per_s")
    }
    return Machine(cpu=machines[0].cpu, threads=machines[0].threads, **highest)


def cpu_name() -> str:
    """Name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if sys.platform == "darwin":
        return _run(["sysctl", "-n", "machdep.cpu.brand_string"]).strip()
    return platform.processor() or platform.machine()


def _run(command: list[str]) -> str:
    """Returns a command's output; raises `ProbeError` with its first error line."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        messages = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise ProbeError(
            f"cannot measure this machine's limits: {Path(command[0]).name} failed "
            f"({messages[0] if messages else 'no message'})."
        ) from error


def main() -> int:
    """Prints the measurement; the last line of output is JSON."""
    with measured_limits() as limits:
        machine, isa = limits.machine, limits.isa
    if machine is None:
        return 1
    print(machine, file=sys.stderr)
    peaks = asdict(machine.kernel_peaks(isa))
    print(json.dumps({**asdict(machine), "isa": isa, "peaks_of_kernels": peaks}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
