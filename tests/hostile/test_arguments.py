"""Invalid arguments: one-sentence errors, within memory and time limits."""

import pytest

from tests.hostile.argument_cases import ARGUMENTS
from tests.hostile.runner import run_rows

QUICK = ARGUMENTS[::6]


def test_case_names_are_unique():
    assert len({case.name for case in ARGUMENTS}) == len(ARGUMENTS) >= 60


@pytest.mark.slow
def test_quick_argument_cases():
    run_rows(QUICK, ARGUMENTS)


@pytest.mark.slow
def test_other_argument_cases():
    run_rows([case for case in ARGUMENTS if case not in QUICK], ARGUMENTS)
