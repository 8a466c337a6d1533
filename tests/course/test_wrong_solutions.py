"""The tests are tested: every mistake of `wrong/` makes the tests of its task fail.

The task's tests run in a process of their own, and C++ is compiled anew for each: see
tools/course/mistakes.py.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.course.support import HAVE_CODE
from tests.course.wrong import Wrong
from tests.course.wrong.all_weeks import WRONG
from tests.metal.support import NO_CLANG
from tools.course.mistakes import (
    INTERPRETED,
    patched,
    run_compiled,
    run_interpreted,
    suffix_of,
    write_complete_tree,
)
from tools.course.outcomes import Outcome, Runner
from tools.course.tasks import day_of_task
from tools.course.tree import ROOT
from tools.metal_emulator import has_clang

IN_PYTHON = [wrong for wrong in WRONG if suffix_of(wrong) in INTERPRETED]
FIRST_OF_DAYS = {day_of_task(wrong.task).id: wrong for wrong in reversed(IN_PYTHON)}.values()
IN_CPP = [wrong for wrong in WRONG if suffix_of(wrong) not in INTERPRETED]

# What a message has that says more than that something is wrong: both sides of a comparison, or a
# sentence of the code's own checks.
TEACHES = re.compile(
    r"expected|instead of|==|<=|>=| in | is None|DID NOT RAISE|Regex|Mismatched"
    r"|^(tiny_llm\.\S+|ValueError): .{20}"
)


def test_every_task_has_two_wrong_solutions():
    counts = Counter(wrong.task for wrong in WRONG)
    lacking = {task: counts[task] for task in HAVE_CODE if counts[task] < 2}
    assert not lacking
    assert len({str(wrong) for wrong in WRONG}) == len(WRONG)


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_wrong_solutions_change_one_place_of_their_block(wrong):
    assert patched(wrong)[1] != (ROOT / patched(wrong)[0]).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def complete_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("complete") / "mine"
    write_complete_tree(tree)
    return tree


def assert_caught(wrong: Wrong, outcomes: list[Outcome]) -> None:
    failed = [outcome for outcome in outcomes if outcome.passed is False]
    assert failed, f"the tests of task {wrong.tested_by} do not notice: {wrong.what}"
    outcome = failed[0]
    assert outcome.test, f"{wrong}: the process died: {outcome.message}"
    print(f"{wrong}\n    {outcome.test}\n    {outcome.message[:300]}")
    assert TEACHES.search(outcome.message), (
        f"{wrong}: {outcome.test} says too little: {outcome.message}"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        wrong if wrong in FIRST_OF_DAYS else pytest.param(wrong, marks=pytest.mark.slow)
        for wrong in IN_PYTHON
    ],
    ids=str,
)
def test_a_mistake_in_python_or_metal_is_caught(runner, tmp_path, wrong):
    if suffix_of(wrong) == ".metal" and not has_clang():
        pytest.skip(NO_CLANG)
    assert_caught(wrong, run_interpreted(runner, tmp_path / "mine", wrong, "-x"))


@pytest.mark.slow
@pytest.mark.parametrize("wrong", IN_CPP, ids=str)
def test_a_mistake_in_cpp_is_caught(runner, complete_tree, wrong):
    assert_caught(wrong, run_compiled(runner, complete_tree, wrong, "-x"))
