"""Text with line markers, as the preprocessor leaves it: places in it, and what brackets hold."""

import re
from collections.abc import Iterator

MARKER = re.compile(r'^# (\d+) "([^"]*)".*$', re.MULTILINE)
CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


def place(text: str, offset: int) -> tuple[str, int]:
    """The file and the line that the character at `offset` comes from."""
    last = None
    for marker in MARKER.finditer(text, 0, offset):
        last = marker
    if last is None:
        return "", 0
    return last[2], int(last[1]) + text.count("\n", last.end() + 1, offset)


def closing(text: str, opening: int) -> int:
    """The offset just past the bracket that closes the one at `opening`; -1 if nothing does."""
    open_, close = text[opening], CLOSING[text[opening]]
    depth = 0
    for i in range(opening, len(text)):
        if text[i] == open_:
            depth += 1
        elif text[i] == close:
            depth -= 1
            if depth == 0:
                return i + 1
    return -1


def split(text: str, separator: str = ",") -> Iterator[tuple[int, str]]:
    """The parts between separators that are in no bracket, each with its offset."""
    depth, start = 0, 0
    for i, character in enumerate(text):
        if character in "([{<":
            depth += 1
        elif character in ")]}>":
            depth -= 1
        elif character == separator and depth == 0:
            yield start, text[start:i]
            start = i + 1
    if text[start:].strip():
        yield start, text[start:]


def blank(text: str) -> str:
    """As many spaces; lines stay lines, so that places stay what they are."""
    return re.sub(r"[^\n]", " ", text)


def newlines(text: str) -> str:
    """The line breaks of `text` alone, behind a replacement that is all on one line."""
    return "\n" * text.count("\n")
