"""Tool parameters: JSON types of values, and grammars of bare text."""

import json
import re
from collections.abc import Mapping
from typing import Any

from .format import literal

# A tool without `parameters` takes no arguments, as in OpenAI's API.
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
DEFINITIONS = ("$defs", "definitions")  # keywords whose schemas `$ref` can refer to
MAX_REFERENCES = 16  # maximum length of a chain of references; a longer one resolves to `{}`
# (JSON type, JSON text) of lowercased Python literals, which some chat templates contain.
LITERALS = {
    "true": ("boolean", "true"),
    "false": ("boolean", "false"),
    "none": ("null", "null"),
    "null": ("null", "null"),
}

MAX_TEXT_LENGTH = 1000  # larger length bounds on bare text are not enforced
TEXT_KEYWORDS = frozenset({"const", "enum", "pattern", "minLength", "maxLength"})
# Anchors, look-around, word boundaries and backreferences, which the grammar library does not
# support in a pattern; also matches named groups.
UNSUPPORTED_REGEX = re.compile(r"\(\?[=!<]|\\[1-9bB]|(?<![\[\\])\^|(?<!\\)\$")


def parameters_of(function: Mapping[str, Any]) -> Any:
    schema = function.get("parameters")
    return NO_PARAMETERS if schema is None else schema


def properties_of(function: Mapping[str, Any]) -> dict[str, Any]:
    properties = _arguments_schema(function).get("properties")
    named = dict(properties) if isinstance(properties, Mapping) else {}
    return {**named, **{name: {} for name in required_of(function) if name not in named}}


def required_of(function: Mapping[str, Any]) -> list[str]:
    required = _arguments_schema(function).get("required")
    return [name for name in required or () if isinstance(name, str)]


def accepts_any_name(function: Mapping[str, Any]) -> bool:
    """Whether a function's schema does not say which parameters it has."""
    schema = _arguments_schema(function)
    return "properties" not in schema and schema.get("additionalProperties") is not False


def _arguments_schema(function: Mapping[str, Any]) -> Mapping[str, Any]:
    root = parameters_of(function)
    schema = resolve(root, root)
    return schema if isinstance(schema, Mapping) else {}


def resolve(schema: Any, root: Any) -> Any:
    """Follows references like `#/$defs/city` in `root`; unknown ones give `{}`."""
    for _ in range(MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str):
            return schema
        schema = root
        for part in reference.removeprefix("#").strip("/").split("/"):
            if part:
                schema = schema.get(part, {}) if isinstance(schema, Mapping) else {}
    return {}


def value_types(schema: Any, root: Any, seen: set[int] | None = None) -> frozenset[str]:
    """Returns the JSON types that a schema allows; empty if unconstrained."""
    schema, seen = resolve(schema, root), set() if seen is None else seen
    if not isinstance(schema, Mapping) or id(schema) in seen:
        return frozenset()
    seen.add(id(schema))  # visit each subschema once: a hostile schema references itself many times
    given = schema.get("type")
    if isinstance(given, str | list):
        return frozenset([given] if isinstance(given, str) else map(str, given))
    if "const" in schema:
        return frozenset([type_of(schema["const"])])
    if isinstance(schema.get("enum"), list):
        return frozenset(map(type_of, schema["enum"]))
    for keyword in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(keyword)
        if isinstance(parts, list):
            types = [value_types(part, root, seen) for part in parts]
            is_restricted = all(types) if keyword != "allOf" else any(types)
            return frozenset().union(*types) if is_restricted else frozenset()
    return frozenset()


def string_schema(schema: Any, root: Any) -> Mapping[str, Any]:
    """Returns the subschema that constrains strings, e.g. of a nullable string."""
    for _ in range(MAX_REFERENCES):
        schema = resolve(schema, root)
        if not isinstance(schema, Mapping):
            break
        combined = [schema.get(keyword) for keyword in ("anyOf", "oneOf")]
        parts = [part for listed in combined if isinstance(listed, list) for part in listed]
        strings = [part for part in parts if "string" in value_types(part, root)]
        if not strings:
            return schema
        schema = strings[0]
    return {}


def type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def to_json(text: str, types: frozenset[str]) -> str:
    """Converts a bare parameter value to JSON.

    A value that is JSON of an allowed type is returned as JSON. Any other becomes a JSON string;
    quotes around it are part of the string.

    Args:
        types: see `value_types`; if empty, only objects and arrays are parsed as JSON.
    """
    allowed = types - {"string"} if types else {"object", "array"}
    try:
        actual, as_json = type_of(json.loads(text, parse_constant=_reject_constant)), text.strip()
    except (ValueError, RecursionError):
        actual, as_json = LITERALS.get(text.strip().lower(), ("", ""))
    is_allowed = actual in allowed or (actual == "integer" and "number" in allowed)
    return as_json if is_allowed else json.dumps(text, ensure_ascii=False)


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def constrained_text(schema: Mapping[str, Any], is_nullable: bool) -> str:
    """Returns a Lark expression for a string parameter's bare text.

    It excludes no end tags: the grammar library cannot exclude any from text of limited length.

    Args:
        schema: JSON schema of the string. `TEXT_KEYWORDS` are enforced, except for large length
            bounds and patterns that the grammar library does not support.
    """
    text = " & ".join([_any_text(schema), *_pattern(schema)])
    return f"({text})" + (' | "null"' if is_nullable else "")


def text_choices(schema: Mapping[str, Any], is_nullable: bool) -> str | None:
    """Returns a Lark expression for the texts of `enum` or `const`; None without them."""
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(choices, list):
        return None
    texts = [choice if isinstance(choice, str) else json.dumps(choice) for choice in choices]
    return " | ".join([*map(literal, texts), *(['"null"'] if is_nullable else [])])


def _any_text(schema: Mapping[str, Any]) -> str:
    bounds = [schema.get(keyword) for keyword in ("minLength", "maxLength")]
    low, high = (
        bound if type(bound) is int and 0 <= bound <= MAX_TEXT_LENGTH else None for bound in bounds
    )
    if low is None and high is None:
        return "/(?s:.*)/"
    return f"/(?s:.{{{low or 0},{'' if high is None else high}}})/"


def _pattern(schema: Mapping[str, Any]) -> list[str]:
    """Converts `pattern` to Lark, unanchored by default; [] if unsupported."""
    pattern = schema.get("pattern")
    if not isinstance(pattern, str):
        return []
    body = pattern.removeprefix("^").removesuffix("$")
    if UNSUPPORTED_REGEX.search(body) or body.endswith("\\"):
        return []
    before = "" if pattern.startswith("^") else "(?s:.*)"
    after = "" if pattern.endswith("$") else "(?s:.*)"
    escaped = re.sub(r"(?<!\\)/", r"\/", body).replace("\n", "\\n")
    return [f"/{before}(?:{escaped}){after}/"]
