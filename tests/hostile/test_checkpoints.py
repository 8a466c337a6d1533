"""Every malformed folder of `checkpoint_cases.py` gets one sentence, within limits."""

from pathlib import Path

import pytest

from tests.hostile import corruptions
from tests.hostile.checkpoint_cases import FOLDERS
from tests.hostile.runner import run_rows

QUICK = [case for index, case in enumerate(FOLDERS) if case.is_quick or index % 20 == 0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    corruptions.make_valid_checkpoint(folder)
    return folder


def test_names_of_rows_are_their_own():
    assert len({case.name for case in FOLDERS}) == len(FOLDERS) >= 170


def test_folders_of_the_quick_run(whole, tmp_path):
    run_rows("folders", FOLDERS, QUICK, whole, tmp_path)


@pytest.mark.slow
def test_the_other_folders(whole, tmp_path):
    run_rows("folders", FOLDERS, [case for case in FOLDERS if case not in QUICK], whole, tmp_path)
