"""Runs tests in a process of their own and tells how each task fared."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .tasks import DAYS
from .tree import ROOT, environment

YOUR_TURN = "is yours to write"


@dataclass(frozen=True)
class Outcome:
    """How one test ended.

    Attributes:
        test: its pytest id.
        passed: True, False, or None if it was skipped.
        message: the last line of its error, or "".
    """

    test: str
    passed: bool | None
    message: str

    @property
    def task(self) -> str | None:
        """The task that it tests."""
        return task_of_test(self.test)

    @property
    def is_your_turn(self) -> bool:
        """Whether it failed because a task is still to be written."""
        return YOUR_TURN in self.message


def task_of_test(test: str) -> str | None:
    """Of "tests/week_1/test_day_3.py::test_task_2_causal_mask[…]": "1.3.2"."""
    file, _, name = test.partition("::")
    number = re.match(r"test_task_(\d+)_", name)
    for day in DAYS:
        if day.test_file == file and number:
            return f"{day.id}.{number[1]}"
    return None


def run_tests(
    tree: Path | None, tests: Sequence[str], *options: str, timeout: float | None = None
) -> list[Outcome]:
    """Runs tests on a learner's tree, or on the solution.

    Args:
        tree: the learner's, or None.
        tests: files or ids, from the root of the project.
        options: for pytest.
        timeout: seconds; a process that takes longer is ended, and what it did not say is missing.

    Returns:
        Outcomes in the order of the tests. One of the test "" tells of a process that died.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.jsonl"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tools.course.report"]
        command += ["-p", "no:cacheprovider", "--tb=short", *options, *tests]
        try:
            run = subprocess.run(
                command,
                cwd=ROOT,
                env={**environment(tree), "TINY_LLM_REPORT": str(report)},
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout,
            )
            said = run.stdout + run.stderr if run.returncode not in (0, 1) else ""
        except subprocess.TimeoutExpired:
            said = f"no end after {timeout:.0f} seconds"
        lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    if said:
        outcomes.append(Outcome("", False, said[-4000:]))
    return outcomes


def first_line(message: str) -> str:
    """What a person needs of an error."""
    return next((line for line in message.split("\n") if line.strip()), "")


def num_workers() -> int:
    """How many processes of tests to run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
