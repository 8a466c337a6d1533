"""Metal 4.1's address space of `this`, which C++ does not have.

Until Metal 4.0 `this` was in `thread`. Metal 4.1, which MLX asks for from macOS 27 on, has a
generic address space, and `this` and the object's members are in it; a reference to `thread`
cannot be bound to one, and a pointer to `thread` cannot point there. A member function with
`thread` behind its parameters has the old meaning in all versions, but can then be called only
where the object is known to be in `thread`: so this goes on to the functions that call it. What is
known of this is in MLX's change for it, https://github.com/ml-explore/mlx/pull/3963.

Reading a member and assigning to it are allowed anywhere. What may bind a reference is refused
here in all functions without `thread`, also where Metal's own function takes a value.
"""

import re
from collections.abc import Sequence

from .errors import Diagnostic
from .syntax_tree import Node

METHOD = re.compile(r"CXX(?:Method|Constructor|Conversion)Decl (0x\w+)")
# Of a template there are the text, which says little of types, and its instances.
TEMPLATE = re.compile(r"(?:Class|Function)Template(?:PartialSpecialization)?Decl ")
INSTANCE = re.compile(r"ClassTemplateSpecializationDecl ")
# What leads from an object to a part of it.
PART = re.compile(r"(?:MemberExpr|ArraySubscriptExpr|ParenExpr|ExtVectorElementExpr) ")
CALLED = re.compile(r"MemberExpr .*'<bound member function type>'.* (0x\w+)$")
# What makes a reference or a pointer of it.
BINDS = re.compile(
    r"(?:CallExpr|CXXMemberCallExpr|CXXOperatorCallExpr|VarDecl|ReturnStmt|CXXStaticCastExpr|"
    r"CXXReinterpretCastExpr|CStyleCastExpr|UnaryOperator .* '&'|"
    r"CXXConstructExpr .*simdgroup_matrix) ?"
)
ADVICE = (
    "in Metal 4.1 (macOS 27) `this` is in no plain address space, and this {what} wants it in "
    "thread: write `thread` behind the function's parameters"
)


def misqualified_members(nodes: Sequence[Node]) -> list[Diagnostic]:
    """Where a member function without `thread` uses its object in a way that wants it there."""
    qualified = _qualified(nodes)
    found = []
    path: list[Node] = []  # from the root to this node
    for node in nodes:
        while path and path[-1].depth >= node.depth:
            path.pop()
        if node.text.startswith("CXXThisExpr "):
            method = _method(path)
            if method is not None and method not in qualified:
                what = _wanted(path, qualified)
                if what is not None:
                    found.append(node.error(ADVICE.format(what=what)))
        path.append(node)
    return found


def _qualified(nodes: Sequence[Node]) -> set[str]:
    """The member functions with `thread`, by clang's number: rewrite.py left them a mark."""
    methods: set[str] = set()
    path: list[Node] = []
    for node in nodes:
        while path and path[-1].depth >= node.depth:
            path.pop()
        if node.text.startswith("AnnotateAttr ") and '"thread"' in node.text:
            method = METHOD.match(path[-1].text)
            if method:
                methods.add(method[1])
        path.append(node)
    return methods


def _method(path: Sequence[Node]) -> str | None:
    """The number of the member function that this path is in, if its types are known."""
    for at in range(len(path) - 1, -1, -1):
        method = METHOD.match(path[at].text)
        if not method:
            continue
        if " implicit " in path[at].text:
            return None
        if "_instantiation" in path[at].text:
            return method[1]
        for outer in reversed(path[:at]):
            if TEMPLATE.match(outer.text):
                return None
            if INSTANCE.match(outer.text):
                break
        return method[1]
    return None


def _wanted(path: Sequence[Node], qualified: set[str]) -> str | None:
    """What of the nodes above `this` wants it in thread: in a word, or None."""
    decayed = False
    for node in reversed(path):
        called = CALLED.match(node.text)
        if called:
            return "call" if called[1] in qualified else None
        if node.text.startswith("ImplicitCastExpr "):
            if "<LValueToRValue>" in node.text:
                return None
            decayed = "<ArrayToPointerDecay>" in node.text
        elif decayed and not node.text.startswith("ArraySubscriptExpr "):
            return "pointer"
        elif PART.match(node.text) or re.match(r"UnaryOperator .*'\*'", node.text):
            decayed = False
        elif node.text.startswith("CXXOperatorCallExpr ") and node.text.endswith("'='"):
            return None
        else:
            return "reference" if BINDS.match(node.text) else None
    return None
