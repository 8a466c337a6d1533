"""`pdm run compare-routing`: two real engines behind each router, without Ray."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("fastapi", reason="the server's libraries are not installed")

from tools.course.tree import environment


@pytest.mark.slow
def test_conversations_hit_the_replica_that_knows_them():
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
