"""Command lines of `pdm run metal-check` and `pdm run metal-run`."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tools.metal_emulator.run import read_buffer

from .support import KERNELS, bfloat16, needs_clang

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


@needs_clang
def test_check_project_kernels():
    result = run("check", KERNELS / "sound.metal", KERNELS / "semantics.metal")
    assert result.returncode == 0, result.stdout
    assert "ok   tests/metal_emulator/kernels/sound.metal: 6 kernels" in result.stdout


def test_missing_clang_message():
    result = run("check", KERNELS, PATH="/nowhere", TINY_LLM_CLANG="/nowhere/clang++")
    assert result.returncode == 2
    assert "apt install clang-19" in result.stderr
    assert "Traceback" not in result.stderr


ROW_SUM = ["row_sum", "--file", KERNELS / "sound.metal", "--grid", "7", "--threads", "128"]
BUFFERS = ["--buffer", "float:7x333:ones", "--buffer", "float:7:zeros", "--buffer", "333"]


@needs_clang
def test_run_prints_outputs_and_counts():
    result = run("run", *ROW_SUM, *BUFFERS, "--mode", "count")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(
        "buffer(1) out: float32 7, sum 2331: 333 333 333 333 333 333 333\n"
    )
    assert "device bytes read                             9,324" in result.stdout


@needs_clang
def test_run_reports_fault(tmp_path):
    np.save(tmp_path / "short.npy", np.ones(2330, np.float32))
    buffers = ["--buffer", tmp_path / "short.npy", *BUFFERS[2:]]
    result = run("run", *ROW_SUM, *buffers, "--mode", "race", "--order", "reverse")
    assert result.returncode == 1
    assert "out-of-bounds in row_sum" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["row_sun", *ROW_SUM[1:], *BUFFERS], "has no kernel 'row_sun'; it has: row_sum"),
        ([*ROW_SUM, "--buffer", "float:7:sevens"], "expected TYPE:SIZE:FILL"),
        ([*ROW_SUM[:3], *ROW_SUM[5:], *BUFFERS], "--grid --grid-threads is required"),
    ],
)
@needs_clang
def test_invalid_command_line_message(arguments, message):
    result = run("run", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_command_line_buffers(tmp_path):
    assert read_buffer("-", 0) is None
    assert read_buffer("3", 0) == 3
    assert read_buffer("true", 0) is True
    assert read_buffer("int:1,64,1024", 0) == np.array([1, 64, 1024], np.int32).tobytes()
    array = read_buffer("bfloat:2x3:arange", 0)
    assert array.dtype == bfloat16
    np.testing.assert_array_equal(array.astype(np.float32), [[0, 1, 2], [3, 4, 5]])
    np.save(tmp_path / "b.npy", array)
    np.testing.assert_array_equal(read_buffer(str(tmp_path / "b.npy"), 0), array)
    assert (read_buffer("float:9:random", 1) != read_buffer("float:9:random", 2)).all()
