"""Test results cached by their dependencies, for `pdm run progress`.

A day's tests run the code of its tasks, of earlier tasks and of those they need. Its results are
valid as long as these are unchanged: the learner's files without the blocks of later tasks, the
built extension, the solution's package, and the tests.
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
from .tree import EXTENSION, PACKAGE, ROOT

# Dependencies of the tests besides the learner's files, and their versions.
SHARED = ("src/tiny_llm", "src/extensions", "tests", "tools")
LIBRARIES = ("mlx", "mlx-lm", "numpy", "pytest")
EMULATED = (".metal", ".h")  # compiled by the emulator at test time


class ResultCache:
    """Results of each day, with a hash of the contents they depend on.

    Args:
        tree: the learner's tree, or None for the solution.
    """

    def __init__(self, tree: Path | None):
        self._tree = tree
        self._file = (tree or ROOT) / "build" / "progress.json"
        try:
            self._days: dict[str, dict[str, object]] = json.loads(self._file.read_text())
        except (OSError, ValueError):
            self._days = {}

    def of(self, day: Day) -> list[Outcome] | None:
        """The day's results; None if missing or outdated."""
        kept = self._days.get(day.id, {})
        if kept.get("contents") != contents_of(self._tree, day):
            return None
        return [Outcome(**outcome) for outcome in kept["outcomes"]]  # type: ignore[attr-defined]

    def keep(self, day: Day, outcomes: Iterable[Outcome]) -> None:
        """Stores a day's results, unless a session ended before its tests."""
        outcomes = list(outcomes)
        if not all(outcome.test for outcome in outcomes):
            return
        contents = contents_of(self._tree, day)
        self._days[day.id] = {"contents": contents, "outcomes": [asdict(one) for one in outcomes]}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(self._days))
        new.replace(self._file)


def contents_of(tree: Path | None, day: Day) -> str:
    """Hash of the dependencies of a day's results.

    Args:
        tree: the learner's tree, or None for the solution.
        day: the day; if its tests need code of later days, that code is included.
    """
    digest = hashlib.sha256(shared_contents().encode())
    module = solution_module() if tree is None else built_module(tree)
    # Week 1 runs without the extension. The built module may be older than its sources.
    if module is not None and (day.week, day.day) >= (1, 7):
        digest.update(module.read_bytes())
    if tree is None:
        return digest.hexdigest()
    so_far = (task.id for one in DAYS[: DAYS.index(day) + 1] for task in one.tasks)
    tasks = with_needs(so_far)
    metal = [path for path in marked_files(tree / EXTENSION) if path.suffix in EMULATED]
    for path in [*marked_files(tree / PACKAGE), *metal]:
        digest.update(f"\0{path.relative_to(tree)}\0{without_later_tasks(path, tasks)}".encode())
    return digest.hexdigest()


def without_later_tasks(path: Path, tasks: set[str]) -> str:
    """A learner's file without the blocks of other tasks.

    Returns the whole file if it cannot be parsed or has lost its markers.
    """
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
def shared_contents() -> str:
    """Hash of the solution's files, the tests, and the libraries' versions."""
    digest = hashlib.sha256(f"{sys.version} {has_clang()}".encode())
    for library in LIBRARIES:
        digest.update(f"{library} {version(library)}".encode())
    for folder in SHARED:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"\0{path.relative_to(ROOT)}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
