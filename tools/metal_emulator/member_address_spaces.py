"""Checks Metal 4.1's generic address space of `this`, which C++ lacks.

Until Metal 4.0 `this` was in the `thread` address space. In Metal 4.1, used by MLX from macOS 27
on, `this` and the object's members are in a generic address space: a `thread` reference cannot bind
to them, and a `thread` pointer cannot point to them. In a member function qualified with `thread`,
`this` is in `thread` in all versions, but the function can only be called on an object in `thread`,
so member functions that call it also need the qualifier. See
https://github.com/ml-explore/mlx/pull/3963.

Reading a member and assigning to it are always allowed. Where a reference may be bound, the
check rejects a function without `thread`, even if the callee takes a value in Metal.
"""

import re
from collections.abc import Sequence

from .errors import Diagnostic
from .syntax_tree import Node

METHOD = re.compile(r"CXX(?:Method|Constructor|Conversion)Decl (0x\w+)")
# clang dumps a template and its instances. The template is skipped, because most of its expressions
# have no type.
TEMPLATE = re.compile(r"(?:Class|Function)Template(?:PartialSpecialization)?Decl ")
INSTANCE = re.compile(r"ClassTemplateSpecializationDecl ")
# Syntax tree nodes that access a member or element of an object.
MEMBER_ACCESS = re.compile(r"(?:MemberExpr|ArraySubscriptExpr|ParenExpr|ExtVectorElementExpr) ")
METHOD_CALL = re.compile(r"MemberExpr .*'<bound member function type>'.* (0x\w+)$")
# Syntax tree nodes that bind a reference or take an address.
REFERENCE_BINDING = re.compile(
    r"(?:CallExpr|CXXMemberCallExpr|CXXOperatorCallExpr|VarDecl|ReturnStmt|CXXStaticCastExpr|"
    r"CXXReinterpretCastExpr|CStyleCastExpr|UnaryOperator .* '&'|"
    r"CXXConstructExpr .*simdgroup_matrix) ?"
)
ADVICE = (
    "in Metal 4.1 (macOS 27) `this` is in the generic address space, but this {what} requires "
    "thread: write `thread` after the function's parameters"
)


def members_missing_thread(nodes: Sequence[Node]) -> list[Diagnostic]:
    """Reports uses of `this` that require `thread`, in member functions without this qualifier."""
    qualified = _qualified(nodes)
    found = []
    path: list[Node] = []  # ancestors of `node`, from the root
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
    """Node ids of member functions with `thread`, as marked by rewrite.py."""
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
    """Node id of the enclosing member function; None in an uninstantiated template."""
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
    """Use of `this` that requires `thread`: "call", "pointer", "reference"; None: other uses."""
    decayed = False
    for node in reversed(path):
        called = METHOD_CALL.match(node.text)
        if called:
            return "call" if called[1] in qualified else None
        if node.text.startswith("ImplicitCastExpr "):
            if "<LValueToRValue>" in node.text:
                return None
            decayed = "<ArrayToPointerDecay>" in node.text
        elif decayed and not node.text.startswith("ArraySubscriptExpr "):
            return "pointer"
        elif MEMBER_ACCESS.match(node.text) or re.match(r"UnaryOperator .*'\*'", node.text):
            decayed = False
        elif node.text.startswith("CXXOperatorCallExpr ") and node.text.endswith("'='"):
            return None
        else:
            return "reference" if REFERENCE_BINDING.match(node.text) else None
    return None
