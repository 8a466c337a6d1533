"""Finds asserts with side effects, which `python -O` would remove."""

import ast
from collections.abc import Iterator
from pathlib import Path

# Functions and methods without side effects, unless they consume an iterator.
PURE_CALLS = frozenset(
    {
        *("all", "any", "is_relative_to", "isinstance", "items", "keys", "len", "map", "max"),
        *("min", "range", "set", "sorted", "sum", "tuple", "values"),
    }
)


def impure_asserts(package: Path) -> list[str]:
    """Returns one sentence per assert that may have a side effect.

    An assert may call the functions in `PURE_CALLS` and read attributes, except properties of the
    package that assign to an attribute when read.
    """
    trees = {
        file.relative_to(package): ast.parse(file.read_text(encoding="utf-8"))
        for file in sorted(package.rglob("*.py"))
    }
    properties = {name for tree in trees.values() for name in _assigning_properties(tree)}
    return [
        f"{file}:{node.lineno}: `python -O` removes this assert, which {reason}; "
        "move that expression to a statement before the assert."
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
        for reason in _side_effects(node.test, properties)
    ]


def _assigning_properties(tree: ast.Module) -> Iterator[str]:
    """Yields names of properties that assign to an attribute when read, except cached ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(decorator, ast.Name) and decorator.id == "property"
            for decorator in node.decorator_list
        ):
            names = (part for part in ast.walk(node) if isinstance(part, ast.Attribute))
            if any(isinstance(name.ctx, ast.Store | ast.Del) for name in names):
                yield node.name


def _side_effects(test: ast.expr, properties: set[str]) -> Iterator[str]:
    for node in ast.walk(test):
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            yield f"contains `{ast.unparse(node)}`"
        elif isinstance(node, ast.Call):
            if getattr(node.func, "attr", getattr(node.func, "id", None)) not in PURE_CALLS:
                yield f"calls `{ast.unparse(node.func)}`"
        elif isinstance(node, ast.Attribute) and node.attr in properties:
            yield f"reads the property `{node.attr}`, which changes an attribute"
