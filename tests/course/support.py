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
from tools.course.tree import PACKAGE, ROOT, environment, import_files
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


def write_tree_with_starter(folder: Path, *modules: str) -> Path:
    """Writes a learner's source tree: the solution with unwritten `modules`."""
    paths = [PACKAGE / module for module in modules]
    write_tree_of(folder, paths[0], "")
    texts = {path: starter_text((ROOT / path).read_text("utf-8"), path) for path in paths}
    for name, text in {**import_files(folder, paths), **texts}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def run_python(
    tree: Path | None, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python on a learner's source tree; `tree` None: on the solution."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment(tree), **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def run_command(
    module: str, tree: Path | None, *arguments: str
) -> subprocess.CompletedProcess[str]:
    solution = "ref" if tree is None else "mine"
    return run_python(tree, "-m", module, *arguments, "--solution", solution)
