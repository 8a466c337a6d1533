"""Malformed checkpoints: one-sentence errors, within memory and time limits."""

from pathlib import Path

import pytest

from tests.hostile import corruptions
from tests.hostile.checkpoint_cases import FOLDERS
from tests.hostile.runner import run_rows

QUICK = [case for index, case in enumerate(FOLDERS) if case.is_quick or index % 20 == 0]


@pytest.fixture(scope="module")
def valid_checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("valid")
    corruptions.make_valid_checkpoint(folder)
    return folder


def test_case_names_are_unique():
    assert len({case.name for case in FOLDERS}) == len(FOLDERS) >= 170


@pytest.mark.slow
def test_quick_checkpoint_cases(valid_checkpoint, tmp_path):
    run_rows("folders", FOLDERS, QUICK, valid_checkpoint, tmp_path)


@pytest.mark.slow
def test_other_checkpoint_cases(valid_checkpoint, tmp_path):
    run_rows(
        "folders",
        FOLDERS,
        [case for case in FOLDERS if case not in QUICK],
        valid_checkpoint,
        tmp_path,
    )
