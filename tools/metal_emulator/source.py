"""Preprocessed text with line markers: locations and bracket matching."""

import re
from collections.abc import Iterator

MARKER = re.compile(r'^# (\d+) "([^"]*)".*$', re.MULTILINE)
CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


def location(text: str, offset: int) -> tuple[str, int]:
    """File and line of the character at `offset`."""
    last = None
    for marker in MARKER.finditer(text, 0, offset):
        last = marker
    if last is None:
        return "", 0
    return last[2], int(last[1]) + text.count("\n", last.end() + 1, offset)


def closing_bracket(text: str, opening: int) -> int:
    """Offset past the bracket that closes the one at `opening`; -1 if unclosed."""
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
    """Yields (offset, substring) between separators outside brackets."""
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


def blank_out(text: str) -> str:
    """Replaces all characters except newlines by spaces."""
    return re.sub(r"[^\n]", " ", text)


def newlines(text: str) -> str:
    """The newlines of `text`. Appending them to a one-line replacement preserves line numbers."""
    return "\n" * text.count("\n")
