"""Shared helpers for tests of the course tooling."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.course.wrong import Wrong
from tools.course.markers import all_blocks
from tools.course.runner import Outcome
from tools.course.starter import starter_text
from tools.course.tree import PACKAGE, ROOT, environment
from tools.course.wrong_solutions import write_tree_of

# Tasks whose solution is in blocks of src/ marked with [task …].
HAVE_CODE = {block.task for _, block in all_blocks(ROOT / "src").values() if block.task is not None}

# Matches messages with an expectation, a comparison, or the error that was or was not raised.
SPECIFIC_MESSAGE = re.compile(
    r"expected|instead of|==|<=|>=| in | is None|DID NOT RAISE|Regex|Mismatched"
    r"|^(tiny_llm\.\S+|ValueError): .{20}"
)


def wrong_solution_params(wrongs: Sequence[Wrong], tried: int) -> list[Any]:
    """Test parameters; mistakes beyond `tried` per task are marked `exhaustive`."""
    count: Counter[str] = Counter()
    cases = []
    for wrong in wrongs:
        count[wrong.task] += 1
        marks = [pytest.mark.exhaustive] if count[wrong.task] > tried else []
        cases.append(pytest.param(wrong, marks=marks, id=str(wrong)))
    return cases


def assert_caught(wrong: Wrong, outcomes: list[Outcome]) -> None:
    """Asserts that a test of the mistake's task fails with a specific message."""
    failed = [outcome for outcome in outcomes if outcome.passed is False]
    assert failed, f"the tests of task {wrong.tested_by} miss the mistake: {wrong.what}"
    outcome = failed[0]
    assert outcome.test, f"{wrong}: the test process crashed: {outcome.message}"
    print(f"{wrong}\n    {outcome.test}\n    {outcome.message[:300]}")
    assert SPECIFIC_MESSAGE.search(outcome.message), (
        f"{wrong}: {outcome.test} fails with a vague message: {outcome.message}"
    )


def write_tree_with_starter(folder: Path, module: str) -> Path:
    """Writes a learner's source tree: the solution with an unwritten `module`."""
    path = PACKAGE / module
    write_tree_of(folder, path, starter_text((ROOT / path).read_text(encoding="utf-8"), path))
    return folder


def run_command(
    module: str, tree: Path | None, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command on a learner's source tree; `tree` None: on the solution."""
    solution = "ref" if tree is None else "mine"
    return subprocess.run(
        [sys.executable, "-m", module, *arguments, "--solution", solution],
        cwd=ROOT,
        env={**os.environ, **environment(tree)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
