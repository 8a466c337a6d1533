"""Fibers: context switches preserve registers and stacks."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tools.metal_emulator.toolchain import clang

from .support import needs_clang

HERE = Path(__file__).parent
RUNTIME = HERE.parent.parent / "tools" / "metal_emulator" / "runtime"


def output_of(compiler, folder, *flags, emulator=()):
    program = folder / "fibers_test"
    sources = [HERE / "fibers_test.cpp", RUNTIME / "fibers.cpp"]
    command = [*compiler, "-std=c++20", "-O2", "-ffp-contract=off", *flags, *sources, "-o", program]
    subprocess.run([str(word) for word in command], check=True)
    run = subprocess.run([*emulator, str(program)], capture_output=True, text=True, check=False)
    return run.stdout.strip()


@needs_clang
@pytest.mark.parametrize("flags", [[], ["-DMSL_UCONTEXT"]], ids=["assembly", "ucontext"])
def test_context_switch_on_this_machine(tmp_path, flags):
    assert output_of([clang()], tmp_path, *flags) == "ok"


@pytest.mark.skipif(
    not (shutil.which("aarch64-linux-gnu-g++") and shutil.which("qemu-aarch64")),
    reason="needs g++-aarch64-linux-gnu and qemu-user",
)
def test_context_switch_on_aarch64(tmp_path):
    compiler = ["aarch64-linux-gnu-g++", "-static"]
    assert output_of(compiler, tmp_path, emulator=["qemu-aarch64"]) == "ok"
