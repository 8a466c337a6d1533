"""Every malformed folder of `folders.py` is answered in one sentence, within memory and time."""

from pathlib import Path

import pytest

from tests.hostile import damage
from tests.hostile.folders import FOLDERS
from tests.hostile.outcomes import run_rows

QUICK = [row for index, row in enumerate(FOLDERS) if row.is_quick or index % 20 == 0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    damage.make_whole(folder)
    return folder


def test_names_of_rows_are_their_own():
    assert len({row.name for row in FOLDERS}) == len(FOLDERS) >= 170


def test_folders_of_the_quick_run(whole, tmp_path):
    run_rows("folders", FOLDERS, QUICK, whole, tmp_path)


@pytest.mark.slow
def test_the_other_folders(whole, tmp_path):
    run_rows("folders", FOLDERS, [row for row in FOLDERS if row not in QUICK], whole, tmp_path)
