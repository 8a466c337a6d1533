"""`pdm run test-kernels`: tests the CPU kernels without MLX or Python.

    pdm run test-kernels               this processor's kernels, and 64-bit ARM in an emulator
    pdm run test-kernels --isa neon    one instruction set
    pdm run test-kernels --sanitize    stops at memory errors and undefined behavior

Building the test program in src/extensions/tests needs only a compiler, so NEON kernels are
cross-compiled by aarch64-linux-gnu-g++ and run by qemu-aarch64.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "extensions" / "tests"
ARM = platform.machine() in ("aarch64", "arm64")
CROSS_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"

# (command, instruction set); "" selects all instruction sets of the processor.
Run: TypeAlias = tuple[list[str], str]


def main() -> int:
    """Exit status: 0 if all tests pass; 1 if one fails; 2 if a tool is missing."""
    parser = argparse.ArgumentParser(
        prog="test-kernels", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--isa",
        choices=["avx2", "avx512vnni", "avx512", "amx", "neon"],
        help="only this instruction set",
    )
    parser.add_argument(
        "--sanitize", action="store_true", help="build with sanitizers (GCC or Clang)"
    )
    args = parser.parse_args()
    neon_alone = args.isa == "neon" and not ARM
    runs = [] if neon_alone else native(args.isa, args.sanitize)
    if neon_alone or (args.isa is None and not ARM and not args.sanitize):
        problem = missing_tools()
        if problem is None:
            runs = emulated() + runs  # the emulator is slowest, so it starts first
        else:
            print(problem, file=sys.stderr)
            if neon_alone:
                return 2
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return 0 if all(list(pool.map(passes, runs))) else 1


def native(isa: str | None, sanitize: bool) -> list[Run]:
    """Builds the test program for this machine; returns one run per test."""
    program = build("native-sanitized" if sanitize else "native", sanitize=sanitize)
    return runs_of([str(program)], isa or "")


def emulated() -> list[Run]:
    """Builds the test program for 64-bit ARM; returns one run per test, in an emulator."""
    program = build(
        "neon",
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={CROSS_COMPILER}",
    )
    return runs_of([EMULATOR, "-L", "/usr/aarch64-linux-gnu", str(program)], "neon")


def missing_tools() -> str | None:
    """Error message if tools for testing NEON are missing, else None."""
    missing = [tool for tool in (CROSS_COMPILER, EMULATOR) if shutil.which(tool) is None]
    if not missing:
        return None
    return (
        f"test-kernels: NEON is not tested, as {' and '.join(missing)} cannot be found; "
        "on Debian and Ubuntu: `apt install g++-aarch64-linux-gnu qemu-user`."
    )


def runs_of(command: Sequence[str], isa: str) -> list[Run]:
    """One run per test of the program, so that tests can run in parallel."""
    names = subprocess.run([*command, "--list"], capture_output=True, text=True, check=True)
    return [([*command, name], isa) for name in names.stdout.split()]


def passes(run: Run) -> bool:
    """Runs one test and prints its output; returns whether the test passed."""
    command, isa = run
    environment = {**os.environ, "TINY_LLM_CPU_ISA": isa}
    result = subprocess.run(
        command,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(result.stdout, end="", flush=True)
    if result.returncode < 0:
        print(
            f"test-kernels: {command[-1]} was killed by signal {-result.returncode}.",
            file=sys.stderr,
        )
    return result.returncode == 0


def build(name: str, *options: str, sanitize: bool = False) -> Path:
    """Compiles the test program; exits with status 1 on failure."""
    folder = ROOT / "build" / "kernel-tests" / name
    configure = ["cmake", "-S", str(SOURCES), "-B", str(folder), "-G", "Ninja", *options]
    configure += [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DTINY_LLM_UNITY=ON",
        "-DTINY_LLM_HOST_ONLY=ON",
        f"-DTINY_LLM_SANITIZE={'ON' if sanitize else 'OFF'}",
    ]
    for command in (configure, ["cmake", "--build", str(folder)]):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            print(result.stdout, result.stderr, sep="\n", file=sys.stderr)
            print("test-kernels: the program did not build; see above.", file=sys.stderr)
            sys.exit(1)
    return folder / "kernel_tests"


if __name__ == "__main__":
    sys.exit(main())
