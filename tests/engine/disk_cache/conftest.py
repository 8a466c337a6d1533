"""A cache directory with pages, written once for all tests."""

import shutil

import pytest

from tests.engine.disk_cache.support import engine, generate_one


@pytest.fixture(scope="session")
def _pages(tmp_path_factory, demo):
    folder = tmp_path_factory.mktemp("pages")
    with engine(folder, demo) as llm:
        return folder, generate_one(llm)


@pytest.fixture
def stored(_pages, tmp_path):
    """Output for `PROMPT`, whose pages are in `tmp_path`."""
    folder, output = _pages
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return output
