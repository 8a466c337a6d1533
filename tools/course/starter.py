"""Starter files: an error naming the task in place of each block.

Everything around a block stays: signature, docstring, shapes, argument checks and markers.
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
    """Starter version of a solution's file.

    Args:
        text: the solution's contents.
        path: for the language and for errors.

    Raises:
        MarkerError: see `find_blocks`; a Python block is not a sequence of a function's statements.
    """
    lines = text.split("\n")
    blocks = find_blocks(text, path)
    for block in reversed(blocks):
        if block.task is None:
            around = lines[max(0, block.start - 2) : block.start - 1] + lines[block.end + 1 :][:1]
            both_empty = around == ["", ""]  # keep one
            del lines[block.start - 1 : block.end + 1 + both_empty]
        else:
            lines[block.start : block.end] = placeholder(text, block, path)
    if any(block.task is not None for block in blocks):
        lines = _with_import(lines, path)
    return "\n".join(lines)


def placeholder(text: str, block: Block, path: Path) -> list[str]:
    """Placeholder lines of a block.

    Args:
        text: contents of the solution's or the learner's file.
        block: a block of a task.
        path: for the language.
    """
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
    message = unwritten_message(block.task, _c_function(lines, block))
    if path.suffix == ".metal":  # kernels cannot raise; their encoder in C++ does
        return [f"{indent}// {line}" for line in _wrapped(message, WIDTH - len(indent) - 3)]
    quoted = _quoted(message, indent + "    ")
    return [f"{indent}throw std::runtime_error(", *quoted[:-1], f"{quoted[-1]});"]


def first_unwritten(text: str, path: Path) -> str | None:
    """Message of the first unimplemented block of a Metal file, or None.

    A block counts as implemented if it has anything but comments; the starter's may stay.
    """
    lines = text.split("\n")
    for block in find_blocks(text, path):
        if block.task is not None and not has_code(lines[block.start : block.end]):
            return unwritten_message(block.task, _c_function(lines, block))
    return None


def has_code(lines: Iterable[str]) -> bool:
    """Whether some lines of Metal have anything but comments."""
    return any(line.strip()[:2] not in ("", "//") for line in lines)


def _quoted(message: str, indent: str) -> list[str]:
    """A message as adjacent string literals, one per line."""
    assert '"' not in message
    pieces = _wrapped(message, WIDTH - len(indent) - 3)
    return [
        f'{indent}"{piece}{" " if number < len(pieces) else ""}"'
        for number, piece in enumerate(pieces, start=1)
    ]


def _wrapped(message: str, width: int) -> list[str]:
    """Lines that form the message when joined by spaces."""
    return textwrap.wrap(message, width, break_on_hyphens=False)


def _python_function(text: str, block: Block, path: Path) -> str:
    """Qualified name of the function that contains a block.

    Raises:
        MarkerError: no function contains it, or it splits a statement.
    """
    first, last = block.start + 1, block.end  # ast's line numbers, inclusive
    where = f"{path}:{block.start}"
    function, statements = _innermost(ast.parse(text).body, first, last)
    if function is None:
        raise MarkerError(f"{where}: [task {block.label}] is not inside a function.")
    for statement in statements:
        start, end = statement.lineno, statement.end_lineno or 0
        if start <= last and first <= end and not (first <= start and end <= last):
            raise MarkerError(f"{where}: [task {block.label}] cuts a statement in two.")
    return function.removesuffix(".__call__")


def _innermost(
    statements: list[ast.stmt], first: int, last: int, name: str = "", function: str | None = None
) -> tuple[str | None, list[ast.stmt]]:
    """Innermost function around some lines, and the innermost list of statements."""
    for outer in statements:
        if not (outer.lineno < first and last <= (outer.end_lineno or 0)):
            continue
        if isinstance(outer, (ast.FunctionDef, ast.ClassDef)):
            name = f"{name}.{outer.name}".lstrip(".")
            function = name if isinstance(outer, ast.FunctionDef) else function
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
    """C++ or Metal function that contains a block: the last one at the beginning of a line."""
    for line in reversed(lines[: block.start]):
        line = re.sub(r"^\[\[.*?\]\]\s*", "", line)
        match = re.match(r"(?!template|namespace|//)\w.*?([\w:]+)\(", line)
        if match:
            return match[1]
    return "this"


def _with_import(lines: list[str], path: Path) -> list[str]:
    """The lines plus the placeholders' missing import."""
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
    """The lines plus one standard header, in its sorted place."""
    depth, at = 0, None
    for index, line in enumerate(lines):
        depth += line.startswith("#if") - line.startswith("#endif")
        if depth == 0 and line.startswith("#include <") and (at is None or line < needed):
            at = index + (line < needed)
    if at is not None:
        return [*lines[:at], needed, *lines[at:]]
    first = next(index for index, line in enumerate(lines) if line.startswith("#include"))
    return [*lines[:first], needed, "", *lines[first:]]
