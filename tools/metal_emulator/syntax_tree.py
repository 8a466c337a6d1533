"""Parser of clang's syntax tree dump, node by node."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import Diagnostic

# A location in the dump; clang omits the file and the line if they have not changed.
LOCATION = re.compile(r"(<[a-z -]+>|[^\s<>:,]+):(\d+):\d+|col:\d+")
TYPE = re.compile(r" '([^']*)'(?::'([^']*)')?")
BRANCHES = re.compile(r"[| `-]*")


@dataclass(frozen=True)
class Node:
    """A line of the dump without tree branches, and its source location.

    `depth` is the indentation; `child` is the next line, which is the first child if there is one.
    """

    text: str
    depth: int
    location: tuple[str, int]
    child: str

    def error(self, message: str) -> Diagnostic:
        """An error at this node's location."""
        return Diagnostic(*self.location, message)


def nodes(dump: str) -> Iterator[Node]:
    """Yields the nodes of a dump in order."""
    file, line = "", 0
    lines = dump.splitlines()
    for text, child in zip(lines, [*lines[1:], ""], strict=True):
        start = None
        for match in LOCATION.finditer(text.split(" '", 1)[0]):
            if match[1] == "line":
                line = int(match[2])
            elif match[1]:
                file, line = match[1], int(match[2])
            start = start or (file, line)
        branches = BRANCHES.match(text)
        depth = branches.end() if branches else 0
        yield Node(text[depth:], depth, start or (file, line), child)


def type_of(text: str) -> str:
    """A node's type in clang's notation, without aliases: 'const __constant int'."""
    match = TYPE.search(text)
    return (match[2] or match[1]) if match else "?"
