"""Faulty replacements of source text, read from `.diff` files.

A file has headings, `== HEADING`, and below each its replacements: a description, the text to find
(`- `), and its replacement (`+ `; none for a deletion).
"""

import re
from collections.abc import Iterator
from pathlib import Path

SECTION = re.compile(r"^== (.+)\n((?:(?!== ).*\n)+)", re.MULTILINE)
REPLACEMENT = re.compile(r"^(.+)\n((?:-(?: .*)?\n)+)((?:\+(?: .*)?\n)*)", re.MULTILINE)


def read_substitutions(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yields (heading, description, text to find, replacement)."""
    for heading, body in SECTION.findall(path.read_text(encoding="utf-8")):
        for description, *texts in REPLACEMENT.findall(body):
            find, replace = ("\n".join(line[2:] for line in t.splitlines()) for t in texts)
            yield heading, description, find, replace
