"""Values for every field of the official clients' request types."""

import types
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin

from typing_extensions import get_type_hints, is_typeddict

Example = tuple[str, Any]  # path without list indexes, and a value of the outermost field

PLAIN_VALUES: dict[Any, Any] = {str: "x", int: 1, float: 0.5, bool: True, object: "x", Any: "x"}
MAX_DEPTH = 8


def examples(kind: Any, path: str, depth: int = 0) -> Iterator[Example]:
    """Yields values of a type: each alternative, and each field of each object on its own."""
    kind, arguments = _unwrapped(kind), get_args(_unwrapped(kind))
    origin = get_origin(kind)
    if depth > MAX_DEPTH:
        return
    if is_typeddict(kind):
        yield from _objects(kind, path, depth)
    elif origin is Literal:
        yield from ((path, value) for value in arguments)
    elif origin in (Union, types.UnionType):
        for alternative in arguments:
            if alternative is not type(None):
                yield from examples(alternative, path, depth)
    elif origin is not None and issubclass(origin, dict):
        yield path, {}
    elif origin is not None and issubclass(origin, Iterable):
        for inner, value in examples(arguments[0], f"{path}[]", depth):
            yield inner, [value]
    elif kind in PLAIN_VALUES:
        yield path, PLAIN_VALUES[kind]


def _objects(kind: Any, path: str, depth: int) -> Iterator[Example]:
    hints = get_type_hints(kind, include_extras=True)
    names = [name for name, hint in hints.items() if _is_required(kind, name, hint)]
    required = {name: _example(hints[name], depth) for name in names}
    for name, hint in hints.items():
        for inner, value in examples(hint, f"{path}.{name}", depth + 1):
            yield inner, {**required, name: value}


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    if get_origin(hint) in (Required, NotRequired):
        return get_origin(hint) is Required
    return name in kind.__required_keys__


def _example(kind: Any, depth: int) -> Any:
    """A value of a type: a text if possible, else the first example."""
    kind = _unwrapped(kind)
    if get_origin(kind) is Union and str in get_args(kind):
        return PLAIN_VALUES[str]
    return next((value for _, value in examples(kind, "", depth + 1)), None)


def _unwrapped(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) in (Required, NotRequired) else kind
