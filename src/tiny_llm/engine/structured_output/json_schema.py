"""Closes JSON schemas: adds `"additionalProperties": false` to objects.

By default a schema allows any additional properties, and a small model then invents them until it
reaches `max_tokens`. Closing only narrows a schema, unless keywords combine several: each would
then forbid the others' properties, so these are left open.

Source: vLLM's default, "strict" grammars.
"""

from collections.abc import Mapping, Sequence
from typing import Any

# Keywords that make a schema's properties depend on another schema.
COMBINING_KEYWORDS = frozenset(
    {
        *("allOf", "oneOf", "not", "if", "dependentSchemas", "dependencies", "extends"),
        *("patternProperties", "propertyNames", "unevaluatedProperties", "minProperties"),
        *("$dynamicRef", "$recursiveRef"),
    }
)
# Keywords with the same effect next to `properties` only.
COMBINING_WITH_PROPERTIES = frozenset({"anyOf", "$ref"})
# Keywords whose values are data, not schemas.
NON_SCHEMA_KEYWORDS = frozenset({"const", "enum", "default", "examples", "x-guidance"})


def close_objects(schema: Any) -> Any:
    """Returns the closed schema, or `schema` itself if it combines schemas.

    Args:
        schema: parsed JSON.
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
