"""Closing of JSON schemas: `"additionalProperties": false` for objects.

By default, a schema allows any additional properties, which a small model may invent until it
reaches `max_tokens`. Closing a schema narrows it. If several schemas apply to one value, however,
each would forbid the others' properties; the whole schema is then left open.

Source: vLLM, whose grammars are "strict" by default.
"""

from typing import Any

# Keywords with which closing could contradict another keyword or schema.
COMBINING_KEYWORDS = frozenset(
    {
        *("allOf", "oneOf", "not", "if", "dependentSchemas", "dependencies", "extends"),
        *("patternProperties", "propertyNames", "unevaluatedProperties", "minProperties"),
        *("dependentRequired", "contains", "$dynamicRef", "$recursiveRef"),
    }
)
# A schema with one of these keywords is closable only without the other and CONTENT_KEYWORDS.
REFERRING_KEYWORDS = frozenset({"anyOf", "$ref"})
CONTENT_KEYWORDS = frozenset(
    {
        *("properties", "required", "additionalProperties", "const", "enum"),
        *("items", "prefixItems", "additionalItems", "unevaluatedItems"),
    }
)
SCHEMA_MAPS = frozenset({"properties", "$defs", "definitions"})
NON_SCHEMA_KEYWORDS = frozenset({"const", "enum", "default", "examples", "x-guidance"})


def close_objects(schema: Any) -> Any:
    """Closes a schema (parsed JSON), or returns it as is if it combines schemas."""
    return _close(schema) if _is_closable(schema) else schema


def _is_closable(schema: Any) -> bool:
    if isinstance(schema, list):
        return all(map(_is_closable, schema))
    if not isinstance(schema, dict):
        return True
    keywords = schema.keys()
    if keywords & COMBINING_KEYWORDS:
        return False
    if (
        keywords & REFERRING_KEYWORDS
        and len(keywords & (REFERRING_KEYWORDS | CONTENT_KEYWORDS)) > 1
    ):
        return False
    for keyword in keywords - NON_SCHEMA_KEYWORDS:
        part = schema[keyword]
        is_map = keyword in SCHEMA_MAPS and isinstance(part, dict)
        if not _is_closable(list(part.values()) if is_map else part):
            return False
    return True


def _close(schema: Any) -> Any:
    if isinstance(schema, list):
        return list(map(_close, schema))
    if not isinstance(schema, dict):
        return schema
    closed: dict[str, Any] = {}
    for keyword, part in schema.items():
        if keyword in SCHEMA_MAPS and isinstance(part, dict):
            closed[keyword] = {name: _close(value) for name, value in part.items()}
        else:
            closed[keyword] = part if keyword in NON_SCHEMA_KEYWORDS else _close(part)
    named, required = schema.get("properties"), schema.get("required", [])
    if (
        isinstance(named, dict)
        and isinstance(required, list)
        and all(isinstance(name, str) and name in named for name in required)
        and not {"const", "enum"} & schema.keys()
    ):
        closed.setdefault("additionalProperties", False)
    return closed
