"""Closing a schema (`additionalProperties: false`) keeps it satisfiable."""

import pytest

from tiny_llm.engine.structured_output.grammar import close_objects

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CLOSED_CITY = {**CITY, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (CITY, CLOSED_CITY),
        ({"type": "array", "items": CITY}, {"type": "array", "items": CLOSED_CITY}),
        ({"anyOf": [CITY, {"type": "null"}]}, {"anyOf": [CLOSED_CITY, {"type": "null"}]}),
        (
            {"$defs": {"not": CITY}, "properties": {"a": {"$ref": "#/$defs/not"}}},
            {
                "$defs": {"not": CLOSED_CITY},
                "properties": {"a": {"$ref": "#/$defs/not"}},
                "additionalProperties": False,
            },
        ),
        ({**CITY, "examples": [{"not": CITY}]}, {**CLOSED_CITY, "examples": [{"not": CITY}]}),
        # Property names that are also keywords.
        (
            {"properties": {"allOf": CITY, "properties": CITY, "enum": CITY}},
            {
                "properties": {
                    "allOf": CLOSED_CITY,
                    "properties": CLOSED_CITY,
                    "enum": CLOSED_CITY,
                },
                "additionalProperties": False,
            },
        ),
    ],
)
def test_objects_are_closed(schema, expected):
    assert close_objects(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "object"},
        {**CITY, "additionalProperties": {"type": "integer"}},
        {**CITY, "required": ["city", "other"]},  # `other` is required and may have any value
        {**CITY, "minProperties": 2},
        {**CITY, "patternProperties": {"^x": True}},
        {"allOf": [CITY, {"properties": {"mayor": {"type": "string"}}, "required": ["mayor"]}]},
        {"oneOf": [CITY, {"properties": {"city": {"type": "string"}}}]},
        {"$defs": {"c": CITY}, "$ref": "#/$defs/c", "properties": {"mayor": True}},
        {"type": "object", "required": ["mayor"], "anyOf": [CITY]},
        {"$defs": {"c": CITY}, "$ref": "#/$defs/c", "required": ["mayor"]},
        {"$defs": {"c": CITY}, "$ref": "#/$defs/c", "anyOf": [CITY]},
        {"items": CITY, "anyOf": [{"items": {"properties": {"mayor": True}}}]},
        {"items": CITY, "contains": {"required": ["mayor"]}},
        {**CITY, "dependentRequired": {"city": ["mayor"]}},
        {**CITY, "const": {"city": "Bern", "mayor": "Alec"}},
        {**CITY, "required": True},
        {**CITY, "required": [{}]},
        {"const": CITY},
        {"enum": [CITY, {"properties": {}}]},
        {**CITY, "enum": [{"city": "Bern", "mayor": "Alec"}]},
        {"anyOf": [CITY], "enum": [{"city": "Bern", "mayor": "Alec"}]},
        {"items": {"oneOf": [CITY]}},
        {"anyOf": [CITY, {"allOf": [CITY]}]},
        *({**CITY, keyword: CITY} for keyword in ("if", "not", "propertyNames", "$dynamicRef")),
        *({**CITY, keyword: CITY} for keyword in ("dependentSchemas", "unevaluatedProperties")),
    ],
)
def test_combined_schemas_stay_open(schema):
    assert close_objects(schema) == schema
