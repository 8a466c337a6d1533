"""A JSON schema whose objects have the properties that it names, and no others.

A schema that says nothing of other properties allows any, and a small model then invents them until
its tokens are used up. What is valid for the closed schema is valid for the open one, as long as
nothing combines schemas: of two that are combined, each would forbid the other's properties.

Source: the default of vLLM, whose grammars call it strict.
"""

from collections.abc import Mapping, Sequence
from typing import Any

# Keywords with which one schema's properties depend on another one.
COMBINING_KEYWORDS = frozenset(
    {
        *("allOf", "oneOf", "not", "if", "dependentSchemas", "dependencies", "extends"),
        *("patternProperties", "propertyNames", "unevaluatedProperties", "minProperties"),
        *("$dynamicRef", "$recursiveRef"),
    }
)
COMBINING_WITH_PROPERTIES = frozenset(
    {"anyOf", "$ref"}
)  # the same, where an object has properties of its own
NON_SCHEMA_KEYWORDS = frozenset(
    {"const", "enum", "default", "examples", "x-guidance"}
)  # not schemas


def close_objects(schema: Any) -> Any:
    """The closed schema, or the same one if that could forbid what it demands.

    Args:
        schema: as JSON: objects, lists and plain values.
    """
    return _close(schema) if _is_closable(schema) else schema


def _is_closable(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        if not COMBINING_KEYWORDS.isdisjoint(schema):
            return False
        if "properties" in schema and not COMBINING_WITH_PROPERTIES.isdisjoint(schema):
            return False
        return all(
            _is_closable(part) for key, part in schema.items() if key not in NON_SCHEMA_KEYWORDS
        )
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return all(map(_is_closable, schema))
    return True


def _close(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        parts = {
            key: part if key in NON_SCHEMA_KEYWORDS else _close(part)
            for key, part in schema.items()
        }
        named, required = schema.get("properties"), schema.get("required", ())
        if isinstance(named, Mapping) and named.keys() >= set(required):
            parts.setdefault("additionalProperties", False)
        return parts
    if isinstance(schema, list):
        return list(map(_close, schema))
    return schema
