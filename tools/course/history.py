"""Learner's history: a JSON line per scoreboard run, quiz and speed score.

Stored as `history.jsonl` in the learner's source tree, or in build/ for the solution.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from .tree import ROOT


def history_file(tree: Path | None) -> Path:
    """Path of a learner's history; for None, of the solution's."""
    return (tree or ROOT / "build") / "history.jsonl"


def append(tree: Path | None, kind: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Appends an entry with the current time and returns it as written."""
    file = history_file(tree)
    file.parent.mkdir(parents=True, exist_ok=True)
    written = {"kind": kind, "when": datetime.now().isoformat(timespec="seconds"), **entry}
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(written) + "\n")
    return written


def entries(tree: Path | None, kind: str) -> list[dict[str, Any]]:
    """All entries of a kind, oldest first; raises `ValueError` for invalid JSON."""
    file = history_file(tree)
    found = []
    if file.exists():
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                entry = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{file}:{number} is not JSON; remove the line.") from error
            if entry["kind"] == kind:
                found.append(entry)
    return found
