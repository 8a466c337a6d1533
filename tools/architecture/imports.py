"""Imports of each module of a package, from the modules' syntax trees."""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

DYNAMIC_IMPORTS = {"import_module", "__import__", "exec", "eval"}


@dataclass(frozen=True)
class Module:
    """One module and its imports, including those for type checking.

    Attributes:
        name: name relative to the package, such as `cli.main`; an `__init__` module has its
            folder's name (`cli`), or "" in the package's root.
        internal: imported modules of the package, including their parent packages.
        external: top-level names of all other imports.
        has_getattr: whether it defines a module-level `__getattr__`.
        dynamic_imports: entries of `DYNAMIC_IMPORTS` that it uses.
    """

    name: str
    internal: frozenset[str]
    external: frozenset[str]
    has_star_import: bool
    has_getattr: bool
    dynamic_imports: frozenset[str]

    @property
    def component(self) -> str:
        """Top-level module or sub-package with this module; "" for the package."""
        return self.name.partition(".")[0]


def read_package(folder: Path) -> dict[str, Module]:
    """Reads all modules of a package, sorted by name."""
    files = {_name(file, folder): file for file in sorted(folder.rglob("*.py"))}
    return {name: _read(name, file, files.keys()) for name, file in files.items()}


def _name(file: Path, folder: Path) -> str:
    parts = file.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read(name: str, file: Path, modules: Collection[str]) -> Module:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    internal: set[str] = set()
    external: set[str] = set()
    has_star_import = False
    dynamic_imports: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            external |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            has_star_import |= "*" in names
            dynamic_imports |= names & DYNAMIC_IMPORTS
            if node.level == 0:
                external.add((node.module or "").split(".")[0])
            else:
                internal |= set(_internal(node, package, modules))
        elif isinstance(node, ast.Attribute):
            dynamic_imports |= {node.attr} & DYNAMIC_IMPORTS - {
                "eval"
            }  # the attribute `eval` is `mx.eval`, not Python's
        elif isinstance(node, ast.Name):
            dynamic_imports |= {node.id} & DYNAMIC_IMPORTS
    modules_and_parents = {folder for module in internal for folder in _with_parents(module)}
    ancestors = set(_with_parents(name)) | {""}
    return Module(
        name,
        frozenset((modules_and_parents - ancestors) | (internal - {name})),
        frozenset(external),
        has_star_import,
        any(_defines(node, "__getattr__") for node in tree.body),
        frozenset(dynamic_imports),
    )


def _internal(node: ast.ImportFrom, package: str, modules: Collection[str]) -> Iterator[str]:
    """Modules of `from .a import b`: `a.b` if it is a module, else `a`."""
    parts = package.split(".") if package else []
    base = [*parts[: len(parts) - node.level + 1]]
    base += node.module.split(".") if node.module else []
    for alias in node.names:
        submodule = ".".join([*base, alias.name])
        yield submodule if submodule in modules else ".".join(base)


def _with_parents(module: str) -> Iterator[str]:
    """Yields a module and its parent packages: `a.b.c`, `a.b`, `a`."""
    while module:
        yield module
        module = module.rpartition(".")[0]


def _defines(node: ast.stmt, function: str) -> bool:
    """Whether a module-level statement defines a function, also inside `if` or `try`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name == function
    if isinstance(node, ast.ClassDef):
        return False
    below = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))
    return any(_defines(child, function) for child in below)
