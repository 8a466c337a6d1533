"""Text tables: one row per line, columns separated by ' | '."""

from __future__ import annotations

from pathlib import Path


def read_rows(name: str) -> list[list[str]]:
    """Reads the rows of `name`.txt."""
    lines = Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line.split(" | ") for line in lines if line and not line.startswith("#")]
