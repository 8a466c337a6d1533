"""Excerpts of source files, extracted when the book is built.

An excerpt is selected by its kind and, except for `file` and `header`, a name:

    task 1.1.1            the lines between `# [task 1.1.1]` and `# [/task 1.1.1]`
    task 1.1.1 softmax    the lines of `# [task 1.1.1 softmax]`
    function softmax      a function or class with its body; `Class.method` for a method
    signature softmax     head and docstring, then `...`; for a class, also those of its methods
    header                the leading comment or docstring of a file
    file                  the complete file
"""

import ast
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from . import BookError

LANGUAGES = {
    ".py": "python",
    ".cpp": "cpp",
    ".h": "cpp",
    ".metal": "cpp",
    ".cmake": "cmake",
    ".txt": "text",
    ".md": "markdown",
    ".toml": "toml",
}
KINDS = ("task", "function", "signature", "header", "file")

MARKER = re.compile(r"^\s*(?:#|//)\s*\[(/?)(?:task ([^\]]+)|solution only)\]\s*$")


@dataclass(frozen=True)
class Snippet:
    """An excerpt, without common indentation and task markers.

    `language` is for syntax highlighting; `first_line` is the first line's number, from 1.
    """

    text: str
    language: str
    first_line: int


def extract_snippet(file: Path, kind: str, name: str = "") -> Snippet:
    """Extracts an excerpt; raises `BookError` for an unknown file, kind or name."""
    if not file.is_file():
        raise BookError(f"file {file} does not exist")
    language = LANGUAGES.get(file.suffix, "text")
    text = file.read_text(encoding="utf-8")
    if kind == "file":
        return _clean(text.splitlines(), 1, language)
    if kind == "header":
        return _header(text, language, file)
    if kind == "task":
        return _task(text, name, language, file)
    if kind in ("function", "signature"):
        if language == "python":
            return _python(text, name, kind == "signature", file)
        return _braces(text, name, kind == "signature", language, file)
    raise BookError(f"unknown kind '{kind}'; use one of {', '.join(KINDS)}")


def _clean(lines: list[str], first_line: int, language: str) -> Snippet:
    """Removes markers, common indentation, and leading and trailing blank lines."""
    kept = [line for line in lines if not MARKER.match(line)]
    text = textwrap.dedent("\n".join(kept)).strip("\n")
    return Snippet(text, language, first_line)


def _task(text: str, name: str, language: str, file: Path) -> Snippet:
    """All blocks of a task or label, joined by a line with `…` for omitted code."""
    wanted = " ".join(name.split())
    blocks: list[list[str]] = []
    first_line, inside = 0, False
    for number, line in enumerate(text.splitlines(), start=1):
        marker = MARKER.match(line)
        if marker and marker[2] and " ".join(marker[2].split()) == wanted:
            inside = not marker[1]
            if inside:
                blocks.append([])
                first_line = first_line or number + 1
        elif inside:
            blocks[-1].append(line)
    if not blocks:
        raise BookError(f"{file.name} has no marker [task {wanted}]")
    if inside:
        raise BookError(f"{file.name}: [task {wanted}] has no [/task {wanted}]")
    gap = ["# …" if language == "python" else "// …"]
    lines = blocks[0]
    for block in blocks[1:]:
        lines = [*lines, *gap, *block]
    return _clean(lines, first_line, language)


def _header(text: str, language: str, file: Path) -> Snippet:
    lines = text.splitlines()
    if language == "python":
        docstring = ast.get_docstring(ast.parse(text))
        if docstring is None:
            raise BookError(f"{file.name} has no docstring")
        return Snippet(docstring, "text", 1)
    comment, sign = [], "//" if language == "cpp" else "#"
    for line in lines:
        if not line.startswith(sign):
            break
        comment.append(line.removeprefix(sign).removeprefix(" "))
    if not comment:
        raise BookError(f"{file.name} does not begin with a comment")
    return Snippet("\n".join(comment), "text", 1)


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _python(text: str, name: str, signature: bool, file: Path) -> Snippet:
    lines = text.splitlines()
    found: ast.AST = ast.parse(text)
    for part in name.split("."):
        for node in getattr(found, "body", []):
            if isinstance(node, Definition) and node.name == part:
                found = node
                break
        else:
            raise BookError(f"{file.name} has no function or class {name}")
    assert isinstance(found, Definition)
    assert found.end_lineno is not None
    if signature:
        return _clean(_signature(found, lines), found.lineno, "python")
    first = min([found.lineno, *(item.lineno for item in found.decorator_list)])
    return _clean(lines[first - 1 : found.end_lineno], first, "python")


def _signature(node: Definition, lines: list[str]) -> list[str]:
    """Head and docstring, then `...`; for a class, also those of its methods."""
    head_end = node.body[0].lineno - 1
    if ast.get_docstring(node) is not None:
        head_end = node.body[0].end_lineno or head_end
    first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
    kept = lines[first - 1 : head_end]
    indent = " " * node.body[0].col_offset
    if not isinstance(node, ast.ClassDef):
        return [*kept, f"{indent}..."]
    for child in node.body:
        if isinstance(child, Definition) and (
            not child.name.startswith("_") or child.name in ("__init__", "__call__")
        ):
            kept = [*kept, "", *_signature(child, lines)]
    return kept


def _braces(text: str, name: str, signature: bool, language: str, file: Path) -> Snippet:
    """A C++ or Metal function: from the comment above it to its closing brace."""
    lines = text.splitlines()
    start = re.compile(rf"(?<![\w.>]){re.escape(name)}\s*\(")
    for number, line in enumerate(lines):
        if line.lstrip().startswith(("//", "return", "#")) or not start.search(line):
            continue
        rest = "\n".join(lines[number:])
        opening = re.search(r"[{;]", rest)
        if opening is None or opening[0] == ";":
            continue  # a declaration or a call, not a definition
        length = _closing_brace(rest, opening.start())
        head = rest[: opening.start()].rstrip()
        body = head + " { … }" if signature else rest[: length + 1]
        first = number
        while first > 0 and re.match(r"\s*(//|template|\[\[|kernel)", lines[first - 1]):
            first -= 1
        return _clean([*lines[first:number], *body.splitlines()], first + 1, language)
    raise BookError(f"{file.name} has no function {name}")


def _closing_brace(text: str, start: int) -> int:
    """Index of the brace that closes the one at `start`; the last index if it is unclosed."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return index
    return len(text) - 1
