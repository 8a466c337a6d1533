"""What a learner has reached, by date: a line of JSON for each scoreboard and each guess.

The file is `history.jsonl` in the learner's tree, or in build/ for the solution.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from .tree import ROOT


def history_file(tree: Path | None) -> Path:
    """Where it is.

    Args:
        tree: the learner's, or None for the solution.
    """
    return (tree or ROOT / "build") / "history.jsonl"


def append(tree: Path | None, kind: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Adds an entry of some kind with the time of now, and returns it as it was written."""
    file = history_file(tree)
    file.parent.mkdir(parents=True, exist_ok=True)
    written = {"kind": kind, "when": datetime.now().isoformat(timespec="seconds"), **entry}
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(written) + "\n")
    return written


def entries(tree: Path | None, kind: str) -> list[dict[str, Any]]:
    """All entries of a kind, the oldest first.

    Raises:
        ValueError: a line that is not JSON; the message names file and line.
    """
    file = history_file(tree)
    found = []
    if file.exists():
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                entry = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{file}:{number} is not a line of JSON; remove it.") from error
            if entry["kind"] == kind:
                found.append(entry)
    return found
