"""`pdm run compare-routing`: each router with two real engines, without Ray."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("fastapi", reason="the server's libraries are not installed")

from tools.course.tree import environment


@pytest.mark.slow
def test_prefix_routing_raises_the_hit_rate():
    command = [sys.executable, "-m", "tools.compare_routing", "--solution", "ref"]
    done = subprocess.run(
        [*command, "--conversations", "3", "--turns", "2"],
        env={**os.environ, **environment(None)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    _, *rows = done.stdout.splitlines()
    rates = {row[:14].strip(): int(row.split()[-1].removesuffix("%")) for row in rows}
    assert rates["prefix-aware"] > rates["round robin"] > 0
