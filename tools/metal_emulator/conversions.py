"""Metal does not convert float to bfloat implicitly. clang does, and its syntax tree shows it.

clang's own warning is silent where the value is a constant that fits. The dump of the syntax tree
has every implicit conversion, in instances of templates too.
"""

from .errors import Diagnostic
from .syntax_tree import Node, type_of

NAMES = {"__bf16": "bfloat", "_Float16": "half"}


def implicit_conversion(node: Node) -> Diagnostic | None:
    """A node that converts to bfloat, or bfloat to half, which the source does not ask for."""
    if "<FloatingCast>" not in node.text or "part_of_explicit_cast" in node.text:
        return None
    target, origin = _name(node.text), _name(node.child)
    if target == "bfloat" or (target == "half" and origin == "bfloat"):
        return node.error(
            f"Metal does not convert {origin} to {target} implicitly: write {target}(…)"
        )
    return None


def _name(text: str) -> str:
    """The type of a node, without qualifiers."""
    name = type_of(text).split()[-1]
    return NAMES.get(name, name)
