"""Command lines of `pdm run metal-check` and `pdm run metal-run`."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from .support import KERNELS, needs_clang

ROOT = Path(__file__).parent.parent.parent


def run(command, *arguments, **environment):
    program = [sys.executable, "-m", f"tools.metal_emulator.{command}", *map(str, arguments)]
    env = {**os.environ, **environment}
    return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False, env=env)


@needs_clang
def test_check_valid_and_invalid_file(tmp_path):
    (tmp_path / "right.metal").write_text(
        "kernel void k(device int* x [[buffer(0)]]) { x[0] = 1; }"
    )
    (tmp_path / "wrong.metal").write_text("kernel void k(\n  device int* x) {\n  x[0] = y;\n}\n")
    result = run("check", tmp_path)
    assert result.returncode == 1
    assert f"ok   {tmp_path}/right.metal: 1 kernel" in result.stdout
    assert f"FAIL {tmp_path}/wrong.metal: not valid Metal" in result.stdout
    assert f"{tmp_path}/wrong.metal:3: error: use of undeclared identifier 'y'" in result.stdout


def test_missing_clang_message():
    result = run("check", KERNELS, PATH="/nowhere", TINY_LLM_CLANG="/nowhere/clang++")
    assert result.returncode == 2
    assert "apt install clang-19" in result.stderr
    assert "Traceback" not in result.stderr


ROW_SUM = ["row_sum", "--file", KERNELS / "sound.metal", "--grid", "7", "--threads", "128"]
BUFFERS = ["--buffer", "float:7x333:ones", "--buffer", "float:7:zeros", "--buffer", "333"]


@needs_clang
def test_run_prints_outputs():
    result = run("run", *ROW_SUM, *BUFFERS)
    assert result.returncode == 0, result.stderr
    assert result.stdout == (
        "buffer(1) out: float32 7, sum 2331: 333 333 333 333 333 333 333\n"
    )  # fmt: skip


@needs_clang
def test_run_reports_fault(tmp_path):
    np.save(tmp_path / "short.npy", np.ones(2330, np.float32))
    buffers = ["--buffer", tmp_path / "short.npy", *BUFFERS[2:]]
    result = run("run", *ROW_SUM, *buffers, "--mode", "race", "--order", "reverse")
    assert result.returncode == 1
    assert "out-of-bounds in row_sum" in result.stderr
