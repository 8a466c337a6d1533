"""`pdm run test-kernels`: tests the CPU kernels by themselves, without MLX or Python around them.

    pdm run test-kernels               what this processor has, and 64-bit ARM in an emulator
    pdm run test-kernels --isa neon    one instruction set
    pdm run test-kernels --sanitize    stops at memory errors and undefined behaviour

The program is built from src/extensions/tests with the compiler alone, so it can be built for a
processor that is not here: NEON is compiled by aarch64-linux-gnu-g++ and run by qemu-aarch64.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "extensions" / "tests"
ARM = platform.machine() in ("aarch64", "arm64")
CROSS_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"


def main() -> int:
    """Exit status 0 if all tests pass, 1 if one fails, 2 if a tool is missing."""
    parser = argparse.ArgumentParser(
        prog="test-kernels", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--isa", choices=["avx2", "avx512", "amx", "neon"], help="one set alone")
    parser.add_argument("--sanitize", action="store_true", help="with GCC's or Clang's sanitizers")
    args = parser.parse_args()
    if args.isa == "neon" and not ARM:
        return test_emulated(required=True)
    status = test_native(args.isa, args.sanitize)
    if status == 0 and args.isa is None and not ARM and not args.sanitize:
        status = test_emulated(required=False)
    return status


def test_native(isa: str | None, sanitize: bool) -> int:
    """Builds for this machine and runs."""
    program = build("native-sanitized" if sanitize else "native", sanitize=sanitize)
    environment = {**os.environ, "TINY_LLM_CPU_ISA": isa or ""}
    return subprocess.run([program], env=environment, check=False).returncode


def test_emulated(required: bool) -> int:
    """Builds for 64-bit ARM and runs in an emulator, or says what is missing."""
    missing = [tool for tool in (CROSS_COMPILER, EMULATOR) if shutil.which(tool) is None]
    if missing:
        print(
            f"test-kernels: NEON is not tested here, as there is no {' and no '.join(missing)}; "
            "on Debian and Ubuntu: `apt install g++-aarch64-linux-gnu qemu-user`.",
            file=sys.stderr,
        )
        return 2 if required else 0
    program = build(
        "neon",
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={CROSS_COMPILER}",
    )
    command = [EMULATOR, "-L", "/usr/aarch64-linux-gnu", str(program)]
    environment = {**os.environ, "TINY_LLM_CPU_ISA": "neon"}
    return subprocess.run(command, env=environment, check=False).returncode


def build(name: str, *options: str, sanitize: bool = False) -> Path:
    """Compiles the program in a folder of its own; ends this process if that fails."""
    folder = ROOT / "build" / "kernel-tests" / name
    configure = ["cmake", "-S", str(SOURCES), "-B", str(folder), "-G", "Ninja", *options]
    configure += [
        "-DCMAKE_BUILD_TYPE=Release",
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
