"""What the commands' tests share."""

import pytest


@pytest.fixture(autouse=True)
def _no_learners_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner's tree beside the solution changes no test."""
    monkeypatch.setenv("TINY_LLM_MINE", "/there-is-no-learners-tree")
