"""`pdm run compile-metal` with a fake Apple compiler: arguments and output."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

# Fake compiler: rejects rms_norm.metal in metal3.2, and saves the files that it receives.
COMPILER = """#!/bin/sh
case "$*" in
  *--version*) exit {status};;
  *-std=metal3.2*/rms_norm.metal*) echo "rms_norm.metal:3:1: error: no" >&2; exit 1;;
esac
for argument; do case "$argument" in *.metal) cp "$argument" "$KEEP";; esac; done
"""


@pytest.fixture
def compile_metal(tmp_path):
    """Returns a function that runs the command with a fake `xcrun`.

    `status` is the exit status of `metal --version`, or None for a machine without `xcrun`.
    """
    keep = tmp_path / "keep"
    keep.mkdir()

    def run(*arguments, status=0):
        tools = tmp_path / "bin"
        tools.mkdir()
        if status is not None:
            (tools / "xcrun").write_text(COMPILER.format(status=status))
            (tools / "xcrun").chmod(0o755)
        for tool in ("sh", "cp"):
            (tools / tool).symlink_to(shutil.which(tool))
        command = [sys.executable, "-m", "tools.compile_metal", *arguments]
        env = {**os.environ, "PATH": str(tools), "KEEP": str(keep)}
        return subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )

    run.keep = keep
    return run


def test_failing_file_is_reported_and_skipped(compile_metal):
    result = compile_metal()
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    at = lines.index("FAIL src/extensions/src/rms_norm/rms_norm.metal")
    assert lines[at + 1 : at + 3] == ["  in metal3.2:", "rms_norm.metal:3:1: error: no"]
    files = len(list((ROOT / "src/extensions").rglob("*.metal")))
    assert sum(line.startswith("ok   ") for line in lines) == files - 1
    assert lines[-1] == f"{files - 1} of {files} files compile in metal3.1, metal3.2"


def test_sources_are_complete(compile_metal):
    assert compile_metal("--std", "metal3.1").returncode == 0
    text = (compile_metal.keep / "matmul_tile.metal").read_text()
    assert '#include "' not in text
    assert '#line 1 "src/extensions/common/metal_tile.h"' in text
    assert "struct TileSums" in text


@pytest.mark.parametrize(
    ("status", "words"), [(None, "Apple's compiler runs on a Mac"), (1, "this Mac has no `metal`")]
)
def test_missing_compiler(compile_metal, status, words):
    result = compile_metal(status=status)
    assert result.returncode == 2
    assert words in result.stderr
    assert not result.stdout
