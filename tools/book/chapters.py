"""Parses chapters: code blocks, task headings, and the day of the course."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import PAGES, BookError

FENCE = re.compile(r"^(\s*)(```+)\s*(.*)$")
DAY = re.compile(r"^day: (\d)\.(\d)$", re.MULTILINE)
TASK = re.compile(r"^## Task (\d+)\b(.*)$")


@dataclass(frozen=True)
class Block:
    """A fenced code block, without the indentation of its fence.

    `language` is the first word after the opening fence, `words` are the others, such as
    `runnable` and `output`; `line` is the fence's line number, from 1.
    """

    language: str
    words: frozenset[str]
    text: str
    line: int


def chapters() -> list[Path]:
    """All chapters, sorted by name."""
    return sorted(PAGES.rglob("*.md"))


def where(chapter: Path, line: int) -> str:
    """Location for messages: `week1/day1.md:12`."""
    name = chapter.relative_to(PAGES) if chapter.is_relative_to(PAGES) else chapter.name
    return f"{name}:{line}"


def blocks(chapter: Path) -> Iterator[Block]:
    """Yields a chapter's fenced blocks; raises `BookError` for an unclosed one."""
    lines = chapter.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        number += 1
        if not opening:
            continue
        first = number
        while number < len(lines) and lines[number].strip() != opening[2]:
            number += 1
        if number == len(lines):
            raise BookError(f"{where(chapter, first)}: unclosed code block")
        words = opening[3].split()
        indent = len(opening[1])
        text = "\n".join(line[indent:] for line in lines[first:number])
        yield Block(words[0] if words else "", frozenset(words[1:]), text, first)
        number += 1


def day_of(chapter: Path) -> tuple[int, int] | None:
    """(week, day) of a course chapter; None for other pages."""
    day = DAY.search(chapter.read_text(encoding="utf-8"))
    return (int(day[1]), int(day[2])) if day else None


def tasks_of(chapter: Path) -> dict[int, int]:
    """Task numbers of a chapter, with the lines of their headings."""
    lines = chapter.read_text(encoding="utf-8").splitlines()
    found = ((number, TASK.match(line)) for number, line in enumerate(lines, start=1))
    return {int(task[1]): number for number, task in found if task}
