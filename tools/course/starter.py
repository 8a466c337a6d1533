"""Generates starter code: replaces task blocks with errors naming the task.

The starter keeps everything around a block: signature, docstring, argument checks and markers.
"""

import ast
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from .markers import Block, MarkerError, find_blocks
from .tasks import unwritten_message

WIDTH = 100


def starter_text(text: str, path: Path) -> str:
    """Converts a file of the solution to starter code; `path` gives the language.

    Raises:
        MarkerError: see `find_blocks`; also for a Python block that is outside functions or splits
            a statement.
    """
    lines = text.split("\n")
    blocks = find_blocks(text, path)
    for block in reversed(blocks):
        if block.task is None:
            around = lines[max(0, block.start - 2) : block.start - 1] + lines[block.end + 1 :][:1]
            both_empty = around == ["", ""]  # deletes one of two empty lines
            del lines[block.start - 1 : block.end + 1 + both_empty]
        else:
            lines[block.start : block.end] = placeholder(text, block, path)
    if any(block.task is not None for block in blocks):
        lines = _with_import(lines, path)
    return "\n".join(lines)


def placeholder(text: str, block: Block, path: Path) -> list[str]:
    """Placeholder lines of an unwritten block; `path` gives the language."""
    assert block.task is not None
    lines = text.split("\n")
    opening = lines[block.start - 1]
    indent = opening[: len(opening) - len(opening.lstrip())]
    if path.suffix == ".py":
        message = unwritten_message(block.task, _python_function(text, block, path))
        return [
            f"{indent}raise TaskNotImplemented(",
            *_quoted(message, indent + "    "),
            f"{indent})",
        ]
    if path.suffix in (".cmake", ".txt"):
        quoted = _quoted(unwritten_message(block.task, path.name), "    ")
        return ["message(FATAL_ERROR", *quoted[:-1], f"{quoted[-1]})"]
    declared = re.match(r"(?:class|struct) (\w+)", lines[block.start])
    if declared:
        return [f"#error {unwritten_message(block.task, declared[1])}"]
    message = unwritten_message(block.task, _c_function(lines, block))
    if path.suffix == ".metal":  # a comment, because a kernel cannot raise
        return [f"{indent}// {line}" for line in _wrapped(message, WIDTH - len(indent) - 3)]
    quoted = _quoted(message, indent + "    ")
    return [f"{indent}throw std::runtime_error(", *quoted[:-1], f"{quoted[-1]});"]


def first_unwritten(text: str, path: Path) -> str | None:
    """Placeholder message of a Metal file's first unwritten block; None if all blocks are written.

    A block counts as written if it has code, even if the starter's comment is still there.
    """
    lines = text.split("\n")
    for block in find_blocks(text, path):
        if block.task is not None and not has_code(lines[block.start : block.end]):
            return unwritten_message(block.task, _c_function(lines, block))
    return None


def has_code(lines: Iterable[str]) -> bool:
    """Whether lines of Metal contain code besides comments."""
    return any(line.strip()[:2] not in ("", "//") for line in lines)


def _quoted(message: str, indent: str) -> list[str]:
    """A message as adjacent string literals, one per line."""
    assert '"' not in message
    lines = _wrapped(message, WIDTH - len(indent) - 3)
    return [
        f'{indent}"{line}{" " if number < len(lines) else ""}"'
        for number, line in enumerate(lines, start=1)
    ]


def _wrapped(message: str, width: int) -> list[str]:
    """Wraps a message into lines; joining them with spaces restores it."""
    return textwrap.wrap(message, width, break_on_hyphens=False)


def _python_function(text: str, block: Block, path: Path) -> str:
    """Qualified name of a block's function; raises `MarkerError` if invalid."""
    first, last = block.start + 1, block.end  # line numbers of `ast`: from 1, both inclusive
    where = f"{path}:{block.start}"
    function, statements = _innermost(ast.parse(text).body, first, last)
    if function is None:
        raise MarkerError(f"{where}: [task {block.label}] is not inside a function.")
    for statement in statements:
        start, end = statement.lineno, statement.end_lineno or 0
        if start <= last and first <= end and not (first <= start and end <= last):
            raise MarkerError(f"{where}: [task {block.label}] splits a statement.")
    return function.removesuffix(".__call__")


def _innermost(
    statements: list[ast.stmt], first: int, last: int, name: str = "", function: str | None = None
) -> tuple[str | None, list[ast.stmt]]:
    """Innermost function and innermost list of statements that contain the given lines."""
    for outer in statements:
        if not (outer.lineno < first and last <= (outer.end_lineno or 0)):
            continue
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{name}.{outer.name}".lstrip(".")
            function = function if isinstance(outer, ast.ClassDef) else name
        parts = [getattr(outer, field, []) for field in ("body", "orelse", "finalbody")]
        parts += [handler.body for handler in getattr(outer, "handlers", [])]
        for inner in parts:
            if any(first <= statement.lineno <= last for statement in inner) or any(
                statement.lineno < first and last <= (statement.end_lineno or 0)
                for statement in inner
            ):
                return _innermost(inner, first, last, name, function)
    return function, statements


def _c_function(lines: list[str], block: Block) -> str:
    """Name of the last function that starts in column 1 above a block, or "this"."""
    for line in reversed(lines[: block.start]):
        line = re.sub(r"^\[\[.*?\]\]\s*", "", line)
        match = re.match(r"(?!template|namespace|//)(?=\w).*?([\w:]+)\(", line)
        if match:
            return match[1]
    return "this"


def _with_import(lines: list[str], path: Path) -> list[str]:
    """Adds the import or include that the placeholders need, if missing."""
    if path.suffix == ".py":
        tree = ast.parse("\n".join(lines))
        imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        if any(name.name == "TaskNotImplemented" for node in imports for name in node.names):
            return lines
        at = max(node.end_lineno or 0 for node in imports)
        dots = "." * (len(path.parts) - len(Path("src/tiny_llm").parts))
        needed = f"from {dots}errors import TaskNotImplemented"
        return lines if needed in lines else [*lines[:at], needed, *lines[at:]]
    needed = "#include <stdexcept>"
    if path.suffix in (".cpp", ".h") and needed not in lines:
        return _with_include(lines, needed)
    return lines


def _with_include(lines: list[str], needed: str) -> list[str]:
    """Inserts a standard header in sorted order."""
    depth, at = 0, None
    for index, line in enumerate(lines):
        depth += line.startswith("#if") - line.startswith("#endif")
        if depth == 0 and line.startswith("#include <") and (at is None or line < needed):
            at = index + (line < needed)
    if at is not None:
        return [*lines[:at], needed, *lines[at:]]
    first = next(index for index, line in enumerate(lines) if line.startswith("#include"))
    return [*lines[:first], needed, "", *lines[first:]]
