"""Requires global variables to be in Metal's constant address space."""

import re

from .errors import Diagnostic
from .syntax_tree import Node, type_of

FUNCTION = re.compile(
    r"Function(?:Template)?Decl|CXX(?:Method|Constructor|Destructor|Conversion)Decl"
)
VARIABLE = re.compile(r"VarDecl .*? (\w+) '")


class GlobalVariables:
    """Visits all nodes in order, and reports global variables outside `constant`."""

    def __init__(self) -> None:
        self._function_depth: int | None = None  # depth of the function around the last node

    def misplaced(self, node: Node) -> Diagnostic | None:
        """Reports a global or static variable without an address space."""
        if self._function_depth is not None and node.depth <= self._function_depth:
            self._function_depth = None
        if FUNCTION.match(node.text):
            self._function_depth = self._function_depth or node.depth
            return None
        if not node.text.startswith("VarDecl "):
            return None
        rest = node.text.rsplit("'", 1)[-1].split()  # specifiers after the type: "static constexpr"
        is_local = self._function_depth is not None and "static" not in rest
        kind = type_of(node.text)
        # mlx::os_log is exempt, because rewrite.py removes its `constant`.
        if is_local or "__constant" in kind or "os_log" in kind:
            return None
        name = VARIABLE.match(node.text)
        return node.error(
            f"'{name[1] if name else '?'}' has no address space: in Metal, global and static "
            f"variables must be in constant; write `constant constexpr`"
        )
