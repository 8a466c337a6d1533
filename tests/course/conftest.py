"""Fixtures for tests of the course tooling."""

from pathlib import Path

import pytest

from tools.course import start


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Path:
    """A learner's new source tree, selected by TINY_LLM_MINE."""
    folder = tmp_path / "mine"
    monkeypatch.setenv("TINY_LLM_MINE", str(folder))
    assert start.main([str(folder)]) == 0
    capsys.readouterr()
    return folder
