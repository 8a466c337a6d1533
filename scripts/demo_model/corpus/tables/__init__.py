"""Text tables: one row a line, columns split by ' | ', the first line a comment on the columns."""

from __future__ import annotations

from pathlib import Path


def read_rows(name: str) -> list[list[str]]:
    """The rows of `name`.txt."""
    lines = Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line.split(" | ") for line in lines if line and not line.startswith("#")]
