"""Smoke test of the course tooling: Week 1, from starter to solution.

test_days.py covers the whole course day by day and builds the learner's extension.
"""

from pathlib import Path

import pytest

from tests.course.support import HAVE_CODE
from tools.course.markers import all_blocks
from tools.course.reveal import apply_tasks
from tools.course.runner import Runner
from tools.course.start import write_tree
from tools.course.tasks import DAYS
from tools.course.tree import ROOT

IN_CPP = {block.task for path, block in all_blocks(ROOT / "src").values() if path.suffix != ".py"}
WEEK = [day for day in DAYS if day.week == 1 and not {task.id for task in day.tasks} & IN_CPP]
TASKS = {task.id for day in WEEK for task in day.tasks} & HAVE_CODE


@pytest.mark.slow
def test_starter_fails_and_solution_passes(tmp_path: Path):
    tree = tmp_path / "mine"
    write_tree(tree)
    files = [day.test_file for day in WEEK]
    with Runner() as runner:
        first_cases = ("-p", "tools.course.pytest_first_case")
        starter = runner.run(tree, files, *first_cases, "-m", "not (slow or thorough)", "--tb=line")
        apply_tasks(tree, TASKS)
        solution = runner.run(tree, files, "-m", "not (slow or thorough)", "--tb=line")
    failed = [outcome for outcome in starter if outcome.passed is False]
    assert len(TASKS) > 10
    assert {outcome.task for outcome in failed} == TASKS, (
        "every task must have a failing test in the starter"
    )
    for outcome in failed:
        assert outcome.is_unwritten, (
            f"{outcome.test}: expected an unwritten task's error, got: {outcome.message}"
        )
    assert {outcome.task for outcome in solution} >= TASKS
    for outcome in solution:
        assert outcome.passed is not False, (
            f"{outcome.test} fails on the solution: {outcome.message}"
        )
