"""Every argument of `arguments.py` is refused in one sentence, within memory and time."""

import pytest

from tests.hostile.argument_cases import ARGUMENTS
from tests.hostile.runner import run_rows

QUICK = ARGUMENTS[::6]


def test_names_of_rows_are_their_own():
    assert len({case.name for case in ARGUMENTS}) == len(ARGUMENTS) >= 60


def test_arguments_of_the_quick_run(tmp_path):
    run_rows("arguments", ARGUMENTS, QUICK, tmp_path, tmp_path / "unused")


@pytest.mark.slow
def test_the_other_arguments(tmp_path):
    others = [case for case in ARGUMENTS if case not in QUICK]
    run_rows("arguments", ARGUMENTS, others, tmp_path, tmp_path / "unused")
