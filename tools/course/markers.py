"""Task markers in the sources: which lines the learner writes.

    # [task 1.1.1 softmax]        the learner writes the lines up to [/task 1.1.1 softmax];
    # [/task 1.1.1 softmax]       the name distinguishes several blocks of a task

    // [solution only]            lines that are omitted from the learner's source tree
    // [/solution only]

A marker is a comment on a separate line: `#` in Python and CMake, `//` in C++ and Metal. Task
markers are kept in the learner's source tree, where they locate the blocks.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from .tasks import TASKS

SUFFIXES = {".py": "#", ".cmake": "#", ".txt": "#", ".cpp": "//", ".h": "//", ".metal": "//"}

MARKER = re.compile(r"^\s*(?:#|//)\s*\[(?P<end>/?)(?P<label>task\b[^\]]*|solution only)\]\s*$")
LABEL = re.compile(r"task (?P<task>\d+\.\d+\.\d+)(?: (?P<name>[a-z0-9-]+))?")


class MarkerError(ValueError):
    """An invalid marker; the message has the file and line number."""


@dataclass(frozen=True)
class Block:
    """The lines between two markers, from index `start` to `end` (exclusive).

    `task` is an id such as "1.1.1", or None for a solution-only block. `name` distinguishes the
    blocks of a task; "" if there is only one.
    """

    task: str | None
    name: str
    start: int
    end: int

    @property
    def label(self) -> str:
        """Unique label such as "1.1.1 softmax"."""
        return f"{self.task} {self.name}".strip()


def find_blocks(text: str, where: str | Path) -> list[Block]:
    """Parses a file's blocks in order; `where` is its name in error messages.

    Raises:
        MarkerError: an unclosed, unmatched, nested or misspelled marker, or an unknown task.
    """
    blocks: list[Block] = []
    opened: tuple[str, int] | None = None
    for index, line in enumerate(text.split("\n")):
        marker = MARKER.match(line)
        if marker is None:
            if re.search(r"\[/?\s*(task\s+\d|solution\s+only)", line, re.IGNORECASE):
                raise MarkerError(
                    f"{where}:{index + 1}: a marker must be a comment on its own line, got "
                    f"{line.strip()!r}."
                )
            continue
        label = marker["label"]
        if not marker["end"]:
            if opened is not None:
                raise MarkerError(
                    f"{where}:{index + 1}: [{label}] begins inside [{opened[0]}] of line "
                    f"{opened[1] + 1}; blocks must not be nested."
                )
            _split(label, f"{where}:{index + 1}")
            opened = label, index
        elif opened is None or opened[0] != label:
            expected = "no block is open" if opened is None else f"[{opened[0]}] is open"
            raise MarkerError(f"{where}:{index + 1}: [/{label}] does not match; {expected}.")
        else:
            task, name = _split(label, f"{where}:{index + 1}")
            blocks.append(Block(task, name, opened[1] + 1, index))
            opened = None
    if opened is not None:
        raise MarkerError(f"{where}:{opened[1] + 1}: [{opened[0]}] is never closed.")
    return blocks


def _split(label: str, where: str) -> tuple[str | None, str]:
    """Splits a label into task and name."""
    if label == "solution only":
        return None, ""
    match = LABEL.fullmatch(label)
    if match is None:
        raise MarkerError(
            f"{where}: [{label}] must have the form [task 1.3.2] or [task 1.3.2 some-name]."
        )
    if match["task"] not in TASKS:
        raise MarkerError(f"{where}: unknown task {match['task']}.")
    return match["task"], match["name"] or ""


def marked_files(root: Path) -> list[Path]:
    """Returns the files below a folder that may have markers, sorted."""
    return sorted(
        path
        for path in root.rglob("*")
        if path.suffix in SUFFIXES and "__pycache__" not in str(path)
    )


def all_blocks(root: Path) -> dict[str, tuple[Path, Block]]:
    """Task blocks below a folder, by label; raises `MarkerError` for a duplicate."""
    found: dict[str, tuple[Path, Block]] = {}
    for path in marked_files(root):
        for block in find_blocks(path.read_text(encoding="utf-8"), path.relative_to(root)):
            if block.task is None:
                continue
            if block.label in found:
                raise MarkerError(
                    f"[task {block.label}] is in {found[block.label][0].relative_to(root)} and in "
                    f"{path.relative_to(root)}; give the blocks of a task different names."
                )
            found[block.label] = path, block
    return found
