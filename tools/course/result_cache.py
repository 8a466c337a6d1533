"""Test result cache: `pdm run progress` reruns only days that changed.

A day's tests depend on its tasks, earlier tasks and their prerequisites. The cache key covers the
learner's files without the blocks of later tasks, the built extension, the solution's sources, the
tests and the library versions.
"""

import ast
import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path

from tools.metal_emulator import has_clang

from .build import built_module, solution_module
from .markers import MarkerError, find_blocks, marked_files
from .runner import Outcome
from .tasks import DAYS, Day, with_needs
from .tree import EXAMPLE, EXTENSION, PACKAGE, ROOT

# Inputs of every day's tests: folders, and libraries (hashed by version).
SHARED = ("src/tiny_llm", "src/extensions", "tests", "tools")
LIBRARIES = ("mlx", "mlx-lm", "numpy", "pytest")
EMULATED = (".metal", ".h")  # compiled by the emulator at test time


class ResultCache:
    """Test outcomes by day, of a learner's source tree or (None) the solution."""

    def __init__(self, tree: Path | None):
        self._tree = tree
        self._file = (tree or ROOT) / "build" / "progress.json"
        try:
            self._days: dict[str, dict[str, object]] = json.loads(self._file.read_text())
        except (OSError, ValueError):
            self._days = {}

    def get(self, day: Day) -> list[Outcome] | None:
        """Returns the day's cached outcomes; None if they are missing or out of date."""
        cached = self._days.get(day.id, {})
        if cached.get("contents") != hash_inputs(self._tree, day):
            return None
        return [Outcome(**outcome) for outcome in cached["outcomes"]]  # type: ignore[attr-defined]

    def put(self, day: Day, outcomes: Iterable[Outcome]) -> None:
        """Stores a day's outcomes, except those of an aborted test session."""
        outcomes = list(outcomes)
        if not all(outcome.test for outcome in outcomes):
            return
        contents = hash_inputs(self._tree, day)
        self._days[day.id] = {"contents": contents, "outcomes": [asdict(one) for one in outcomes]}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(self._days))
        new.replace(self._file)


def hash_inputs(tree: Path | None, day: Day) -> str:
    """Hashes all inputs of a day's tests, including later tasks that they need."""
    digest = hashlib.sha256(hash_shared_inputs().encode())
    module = solution_module() if tree is None else built_module(tree)
    # Day 1.7 introduces the extension. Its sources may have changed since the build, so the
    # compiled module is hashed.
    if module is not None and (day.week, day.day) >= (1, 7):
        digest.update(module.read_bytes())
    if tree is None:
        return digest.hexdigest()
    so_far = (task.id for one in DAYS[: DAYS.index(day) + 1] for task in one.tasks)
    tasks = with_needs(so_far)
    metal = [path for path in marked_files(tree / EXTENSION) if path.suffix in EMULATED]
    for path in [*marked_files(tree / PACKAGE), *metal, *marked_files(tree / EXAMPLE)]:
        digest.update(f"\0{path.relative_to(tree)}\0{without_later_tasks(path, tasks)}".encode())
    return digest.hexdigest()


def without_later_tasks(path: Path, tasks: set[str]) -> str:
    """A learner's file without the blocks of later tasks; unchanged if invalid."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        if path.suffix == ".py":
            ast.parse(text)
        blocks = find_blocks(text, path)
    except (SyntaxError, ValueError, MarkerError):
        return text
    lines = text.split("\n")
    for block in reversed(blocks):
        if block.task not in tasks:
            lines[block.start : block.end] = []
    return "\n".join(lines)


@cache
def hash_shared_inputs() -> str:
    """Hash of the solution's sources, the tests, the tools and the library versions."""
    digest = hashlib.sha256(f"{sys.version} {has_clang()}".encode())
    for library in LIBRARIES:
        digest.update(f"{library} {version(library)}".encode())
    for folder in SHARED:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"\0{path.relative_to(ROOT)}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
