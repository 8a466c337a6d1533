"""What the course's own tests share."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.course.wrong import Wrong
from tools.course.markers import all_blocks
from tools.course.runner import Outcome
from tools.course.tree import ROOT

# The tasks that have code to write in this version of the solution.
HAVE_CODE = {block.task for _, block in all_blocks(ROOT / "src").values() if block.task is not None}

# What a message has that says more than that something is wrong: both sides of a comparison, or a
# sentence of the code's own checks.
TEACHES = re.compile(
    r"expected|instead of|==|<=|>=| in | is None|DID NOT RAISE|Regex|Mismatched"
    r"|^(tiny_llm\.\S+|ValueError): .{20}"
)


def wrong_solution_params(wrongs: Sequence[Wrong], tried: int) -> list[Any]:
    """Parameters of a test; all but the first few mistakes of a task are marked `exhaustive`.

    Args:
        wrongs: the mistakes.
        tried: how many of a task are tried without it.
    """
    count: Counter[str] = Counter()
    cases = []
    for wrong in wrongs:
        count[wrong.task] += 1
        marks = [pytest.mark.exhaustive] if count[wrong.task] > tried else []
        cases.append(pytest.param(wrong, marks=marks, id=str(wrong)))
    return cases


def assert_caught(wrong: Wrong, outcomes: list[Outcome]) -> None:
    """A mistake made a test of its task fail, with a message from which one learns something."""
    failed = [outcome for outcome in outcomes if outcome.passed is False]
    assert failed, f"the tests of task {wrong.tested_by} do not notice: {wrong.what}"
    outcome = failed[0]
    assert outcome.test, f"{wrong}: the process died: {outcome.message}"
    print(f"{wrong}\n    {outcome.test}\n    {outcome.message[:300]}")
    assert TEACHES.search(outcome.message), (
        f"{wrong}: {outcome.test} says too little: {outcome.message}"
    )
