"""Rejects implicit conversions to or from bfloat that Metal lacks.

clang allows them, and its warning ignores constants that are exactly representable. This module
searches clang's syntax tree dump, which has every implicit conversion, also in template instances.
"""

from .errors import Diagnostic
from .syntax_tree import Node, type_of

NAMES = {"__bf16": "bfloat", "_Float16": "half"}


def implicit_conversion(node: Node) -> Diagnostic | None:
    """Reports an implicit conversion to bfloat, or from bfloat to half."""
    if "<FloatingCast>" not in node.text or "part_of_explicit_cast" in node.text:
        return None
    target, origin = _name(node.text), _name(node.child)
    if target == "bfloat" or (target == "half" and origin == "bfloat"):
        return node.error(
            f"Metal does not convert {origin} to {target} implicitly: write {target}(…)"
        )
    return None


def _name(text: str) -> str:
    """Metal's name of a syntax tree node's type, without qualifiers."""
    name = type_of(text).split()[-1]
    return NAMES.get(name, name)
