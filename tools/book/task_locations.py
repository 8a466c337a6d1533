"""Files and functions of each task, from the markers in the sources."""

import re
from functools import cache

from tools.course.markers import all_blocks
from tools.course.starter import placeholder

from . import ROOT

PLACEHOLDER = re.compile(r"task \d+: (\S+) is yours to write")


@cache
def functions_of_tasks() -> dict[str, dict[str, list[str]]]:
    """Functions to implement, by task id (such as "1.1.1") and file."""
    found: dict[str, dict[str, list[str]]] = {}
    for path, block in all_blocks(ROOT / "src").values():
        assert block.task is not None
        text = path.read_text(encoding="utf-8")
        lines = placeholder(text, block, path)
        # The placeholder's message is split into string literals or comments, one per line.
        message = " ".join(line.strip().strip('"/ );') for line in lines)
        function = PLACEHOLDER.search(re.sub(r"\s+", " ", message))
        name = function[1] if function else block.name
        files = found.setdefault(block.task, {})
        names = files.setdefault(path.relative_to(ROOT).as_posix(), [])
        if name not in names:
            names.append(name)
    return found


def task_locations_line(task_id: str) -> str | None:
    """A task's locations as a line of Markdown; None if no source file has its marker."""
    files = functions_of_tasks().get(task_id)
    if files is None:
        return None
    parts = []
    for path, names in files.items():
        listed = ", ".join(f"`{name}`" for name in names)
        parts.append(f"{listed} in `{path.removeprefix('src/tiny_llm/')}`")
    return f"**To write:** {'; '.join(parts)}."
