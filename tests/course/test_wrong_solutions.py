"""Mutation tests: every mistake in `wrong/` fails its task's tests.

Each task's tests run in a separate process; see tools/course/wrong_solutions.py. test_days.py
applies the C++ mistakes, which need a compiled extension.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.course.support import HAVE_CODE, assert_caught, wrong_solution_params
from tests.course.wrong import WRONG, Wrong
from tests.metal.support import NO_CLANG
from tools.course.runner import Runner
from tools.course.tasks import day_of_task
from tools.course.tree import ROOT
from tools.course.wrong_solutions import INTERPRETED, apply_mistake, run_interpreted, suffix_of
from tools.metal_emulator import has_clang

IN_PYTHON = [wrong for wrong in WRONG if suffix_of(wrong) in INTERPRETED]
FIRST_OF_WEEKS = {day_of_task(wrong.task).week: wrong for wrong in reversed(IN_PYTHON)}.values()
OTHERS = [wrong for wrong in IN_PYTHON if wrong not in FIRST_OF_WEEKS]


def test_every_task_has_two_wrong_solutions():
    counts = Counter(wrong.task for wrong in WRONG)
    assert not {task: counts[task] for task in HAVE_CODE if counts[task] < 2}
    assert len({str(wrong) for wrong in WRONG}) == len(WRONG)


def test_wrong_solutions_change_one_location_in_their_block():
    for wrong in WRONG:
        path, text = apply_mistake(wrong)
        assert text != (ROOT / path).read_text(encoding="utf-8"), f"{wrong} changes nothing"


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as runner:
        yield runner


def assert_mistake_is_caught(runner: Runner, tree: Path, wrong: Wrong) -> None:
    if suffix_of(wrong) == ".metal" and not has_clang():
        pytest.skip(NO_CLANG)
    assert_caught(wrong, run_interpreted(runner, tree, wrong, "-x"))


@pytest.mark.parametrize("wrong", FIRST_OF_WEEKS, ids=str)
def test_first_mistake_of_each_week_is_caught(runner, tmp_path, wrong):
    assert_mistake_is_caught(runner, tmp_path / "mine", wrong)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", wrong_solution_params(OTHERS, 2))
def test_python_or_metal_mistake_is_caught(runner, tmp_path, wrong):
    assert_mistake_is_caught(runner, tmp_path / "mine", wrong)
