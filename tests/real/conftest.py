"""Marks this folder's tests `real`; provides the cached artifacts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.real_artifacts import cached_folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("real")


def artifact_folder(name: str) -> Path:
    """Folder of an artifact's files; skips the test if it has not been downloaded."""
    folder = cached_folder(name)
    if folder is None:
        pytest.skip(f"{name} is not in the cache: python -m tools.real_artifacts {name}")
    return folder


@pytest.fixture(scope="session")
def artifact() -> Callable[[str], Path]:
    """Function that returns the folder of an artifact's files, or skips the test."""
    return artifact_folder
