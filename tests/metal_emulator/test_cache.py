"""Cache of compiled programs: reuse and eviction."""

import os
import time

import pytest

from tools.metal_emulator import cache


def make(folder):
    (folder / "program").write_text("x")


def test_program_is_compiled_once(tmp_path):
    made = []
    for _ in range(2):
        cache.fetch(tmp_path / "a", lambda folder: made.append(make(folder)))
    assert len(made) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_lru_eviction(tmp_path):
    """A lookup counts as use; entries used in the last hour are kept."""
    now = time.time()
    for age, name in enumerate("abcde"):
        cache.fetch(tmp_path / name, make)
        os.utime(tmp_path / name, (now - 7200 - age,) * 2)
    cache.fetch(tmp_path / "e", make)  # the oldest entry becomes the most recent
    cache.fetch(tmp_path / "f", make, kept=3)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "e", "f"}
    cache.fetch(tmp_path / "g", make, kept=1)
    assert {path.name for path in tmp_path.iterdir()} == {"e", "f", "g"}


def test_failed_compile_leaves_no_entry(tmp_path):
    def fail(folder):
        make(folder)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.fetch(tmp_path / "a", fail)
    assert not list(tmp_path.iterdir())
