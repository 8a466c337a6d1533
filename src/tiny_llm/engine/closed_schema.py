"""A JSON schema whose objects have the properties that it names, and no others.

A schema that says nothing of other properties allows any, and a small model then invents them until
its tokens are used up. What is valid for the closed schema is valid for the open one, as long as
nothing combines schemas: of two that are combined, each would forbid the other's properties.

Source: the default of vLLM, whose grammars call it strict.
"""

from collections.abc import Mapping, Sequence
from typing import Any

# Keywords with which one schema's properties depend on another one.
COMBINING = frozenset(
    {
        *("allOf", "oneOf", "not", "if", "dependentSchemas", "dependencies", "extends"),
        *("patternProperties", "propertyNames", "unevaluatedProperties", "minProperties"),
        *("$dynamicRef", "$recursiveRef"),
    }
)
BESIDE = frozenset({"anyOf", "$ref"})  # the same, where an object has properties of its own
VALUES = frozenset({"const", "enum", "default", "examples", "x-guidance"})  # not schemas


def closed(schema: Any) -> Any:
    """The closed schema, or the same one if that could forbid what it demands.

    Args:
        schema: as JSON: objects, lists and plain values.
    """
    return _closed(schema) if _can_be_closed(schema) else schema


def _can_be_closed(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        if not COMBINING.isdisjoint(schema):
            return False
        if "properties" in schema and not BESIDE.isdisjoint(schema):
            return False
        return all(_can_be_closed(part) for key, part in schema.items() if key not in VALUES)
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return all(map(_can_be_closed, schema))
    return True


def _closed(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        parts = {key: part if key in VALUES else _closed(part) for key, part in schema.items()}
        named, required = schema.get("properties"), schema.get("required", ())
        if isinstance(named, Mapping) and named.keys() >= set(required):
            parts.setdefault("additionalProperties", False)
        return parts
    if isinstance(schema, list):
        return list(map(_closed, schema))
    return schema
