"""What each file of a package imports, read from its syntax tree; nothing is executed."""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

HIDING = {"import_module", "__import__", "exec", "eval"}


@dataclass(frozen=True)
class Module:
    """One file and its imports, those for the type checker included.

    Attributes:
        name: below the package: `cli.main`, `cli` for a folder's `__init__`, "" for the package's.
        own: modules of the package, with the folders whose `__init__` runs on the way to them.
        foreign: the top-level names of all others.
        stars: whether it has an `import *`.
        finder: whether the module has a `__getattr__`, which finds names when they are asked for.
        hidden: names that it uses to import what no import statement shows.
    """

    name: str
    own: frozenset[str]
    foreign: frozenset[str]
    stars: bool
    finder: bool
    hidden: frozenset[str]

    @property
    def room(self) -> str:
        """The entry of the package's folder that it belongs to; "" for the package itself."""
        return self.name.partition(".")[0]


def read_package(folder: Path) -> dict[str, Module]:
    """Every module of a package by name, in the order of their names."""
    files = {_name(file, folder): file for file in sorted(folder.rglob("*.py"))}
    return {name: _read(name, file, files.keys()) for name, file in files.items()}


def _name(file: Path, folder: Path) -> str:
    parts = file.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read(name: str, file: Path, modules: Collection[str]) -> Module:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    own: set[str] = set()
    foreign: set[str] = set()
    stars = False
    hidden: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            foreign |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            stars |= "*" in names
            hidden |= names & HIDING
            if node.level == 0:
                foreign.add((node.module or "").split(".")[0])
            else:
                own |= set(_own(node, package, modules))
        elif isinstance(node, ast.Attribute):
            hidden |= {node.attr} & HIDING - {"eval"}  # mx.eval computes arrays
        elif isinstance(node, ast.Name):
            hidden |= {node.id} & HIDING
    with_folders = {folder for module in own for folder in _and_folders(module)}
    around = set(_and_folders(name)) | {""}
    return Module(
        name,
        frozenset((with_folders - around) | (own - {name})),
        frozenset(foreign),
        stars,
        any(_defines(node, "__getattr__") for node in tree.body),
        frozenset(hidden),
    )


def _own(node: ast.ImportFrom, package: str, modules: Collection[str]) -> Iterator[str]:
    """The modules behind `from .a import b`: `a.b` if that is one, `a` if b is a name in it."""
    parts = package.split(".") if package else []
    base = [*parts[: len(parts) - node.level + 1]]
    base += node.module.split(".") if node.module else []
    for alias in node.names:
        submodule = ".".join([*base, alias.name])
        yield submodule if submodule in modules else ".".join(base)


def _and_folders(module: str) -> Iterator[str]:
    """`a.b.c`, `a.b`, `a`."""
    while module:
        yield module
        module = module.rpartition(".")[0]


def _defines(node: ast.stmt, function: str) -> bool:
    """Whether a statement of a module defines a function, also below an `if` or a `try`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name == function
    if isinstance(node, ast.ClassDef):
        return False
    below = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))
    return any(_defines(child, function) for child in below)
