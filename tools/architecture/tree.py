"""Module tree in ARCHITECTURE.md, generated from the first line of each file.

In `tiny_llm`, each `__init__.py` lists the folder's entries in reading order, in a docstring
paragraph that begins with `Reading order:`. Other folders are sorted by name.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .rules import PACKAGE, part_of

ROOT = PACKAGE.parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
BLOCK = re.compile(r"(?<=```text\n)tiny-llm/\n.*?(?=```)", re.DOTALL)
WIDTH = 118
HIDDEN = {"__init__.py", "__main__.py", "__pycache__"}

# Other folders: (description if no docstring, whether modules are shown, whether sub-folders are).
OUTSIDE = {
    "src/extensions": ("C++ extension: one folder of src/ per operation", False, False),
    "src/extensions/src": ("operations", False, True),
    "examples": ("short programs that use the public API", True, False),
    "tests": ("", False, True),
    "benchmark": ("", True, False),
    "tools": ("", True, True),
}


@dataclass(frozen=True)
class Entry:
    """One line of the tree: absolute path, indentation level, description."""

    path: Path
    depth: int
    text: str


def first_line(path: Path) -> str:
    """First docstring paragraph of a Python file or package; "" if missing.

    For the folder of a C++ operation, the first sentence of the comment in its header.
    """
    if path.is_dir():
        header = path / f"{path.name}.h"
        path = header if header.exists() else path / "__init__.py"
    if not path.exists():
        return ""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(source)) or ""
    else:
        text = "\n".join(line[2:].strip() for line in source.splitlines() if line.startswith("//"))
    sentence = " ".join(text.partition("\n\n")[0].split())
    if path.suffix == ".h":
        sentence = re.split(r"(?<=[.])\s|:\s(?=[a-z_]+[\[(])", sentence)[0]
    return sentence.rstrip(".")


def reading_order(package: Path) -> list[str]:
    """Names after `Reading order:` in a package's docstring, or a package's only entry."""
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8"))) or ""
    match = re.search(r"Reading order: ([^.]*)\.", docstring)
    if match is None:
        entries = list(entries_of(package))
        return entries if len(entries) == 1 else []
    return [name.strip() for name in match[1].split(",")]


def entries_of(package: Path) -> dict[str, Path]:
    """Modules and sub-packages of a package, by name."""
    children = [path for path in package.iterdir() if path.name not in HIDDEN]
    modules = {path.stem: path for path in children if path.suffix == ".py"}
    return modules | {path.name: path for path in children if (path / "__init__.py").exists()}


def unordered(package: Path) -> list[str]:
    """One sentence per package whose reading order does not match its entries."""
    problems = []
    for init in sorted(package.rglob("__init__.py")):
        entries, order = set(entries_of(init.parent)), reading_order(init.parent)
        if entries and entries != set(order):
            name = init.parent.relative_to(package.parent).as_posix()
            names = ", ".join(sorted(entries ^ set(order)))
            problems.append(f"{name}/__init__.py: reading order and entries differ: {names}.")
    return problems


def _package(package: Path, depth: int) -> Iterator[Entry]:
    entries = entries_of(package)
    for name in reading_order(package):
        path = entries[name]
        yield Entry(path, depth, first_line(path))
        if path.is_dir():
            yield from _package(path, depth + 1)


def _outside() -> Iterator[Entry]:
    for name, (text, with_modules, with_folders) in OUTSIDE.items():
        folder = ROOT / name
        if not folder.exists():
            continue
        depth = name.count("/") - name.startswith("src/") + 1
        yield Entry(folder, depth, first_line(folder) or text)
        for path in sorted(folder.iterdir()):
            is_module = path.suffix == ".py" and with_modules
            is_folder = path.is_dir() and with_folders
            if path.name not in HIDDEN and (is_module or is_folder) and first_line(path):
                yield Entry(path, depth + 1, first_line(path))


def _line(entry: Entry, width: int) -> str:
    name = entry.path.name if entry.depth > 1 else entry.path.relative_to(ROOT).as_posix()
    head = "  " * entry.depth + name + "/" * entry.path.is_dir()
    line = f"{head:<{width}}{entry.text}".rstrip()
    return line if len(line) <= WIDTH else line[: WIDTH - 1].rsplit(" ", 1)[0] + " …"


def tree() -> str:
    """The complete module tree as text, one line per entry."""
    top = Entry(PACKAGE, 1, first_line(PACKAGE))
    entries = [top, *_package(PACKAGE, 2), *_outside()]
    width = 2 + max(2 * entry.depth + len(entry.path.name) for entry in entries)
    lines, heading = ["tiny-llm/"], ""
    for entry in entries:
        if entry.path.parent == PACKAGE and heading != (heading := part_of(entry.path.stem)):
            lines.append(f"    # {heading}")
        lines.append(_line(entry, width))
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """Text of ARCHITECTURE.md with the tree regenerated."""
    return BLOCK.sub(lambda _: tree(), text, count=1)
