"""Metal converts no float to bfloat by itself. clang does, and its syntax tree shows it.

clang's own warning is silent where the value is a constant that fits. The dump of the syntax tree
has every conversion that nobody wrote, in instances of templates too.
"""

import re

from .errors import Diagnostic

# A place in the dump: of the file and line before it, unless it says otherwise.
PLACE = re.compile(r"(<[a-z -]+>|[^\s<>:,]+):(\d+):\d+|col:\d+")
TYPE = re.compile(r" '([^']*)'(?::'([^']*)')?")
NAMES = {"__bf16": "bfloat", "_Float16": "half"}


def implicit_conversions(dump: str, own_folder: str) -> list[Diagnostic]:
    """Conversions to bfloat, and of bfloat to half, outside of the emulator's own headers."""
    found: dict[Diagnostic, None] = {}
    file, line = "", 0
    lines = dump.splitlines()
    for i, text in enumerate(lines):
        start = None
        for place in PLACE.finditer(text.split(" '", 1)[0]):
            if place[1] == "line":
                line = int(place[2])
            elif place[1]:
                file, line = place[1], int(place[2])
            start = start or (file, line)
        if "<FloatingCast>" not in text or "part_of_explicit_cast" in text:
            continue
        target, origin = _type(text), _type(lines[i + 1])
        if target == "bfloat" or (target == "half" and origin == "bfloat"):
            message = f"Metal does not convert {origin} to {target} implicitly: write {target}(…)"
            if start is not None and not start[0].startswith(own_folder):
                found[Diagnostic(*start, message)] = None
    return list(found)


def _type(text: str) -> str:
    """The type of a node, without aliases and qualifiers."""
    match = TYPE.search(text)
    name = (match[2] or match[1]).split()[-1] if match else "?"
    return NAMES.get(name, name)
