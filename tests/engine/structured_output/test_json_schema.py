"""Closed schemas: narrower than the open ones, never empty."""

import pytest

from tiny_llm.engine.structured_output.json_schema import close_objects

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CLOSED_CITY = {**CITY, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (CITY, CLOSED_CITY),
        ({"type": "array", "items": CITY}, {"type": "array", "items": CLOSED_CITY}),
        ({"anyOf": [CITY, {"type": "null"}]}, {"anyOf": [CLOSED_CITY, {"type": "null"}]}),
        (
            {"$defs": {"c": CITY}, "properties": {"a": {"$ref": "#/$defs/c"}}},
            {
                "$defs": {"c": CLOSED_CITY},
                "properties": {"a": {"$ref": "#/$defs/c"}},
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
        {"const": CITY},
        {"enum": [CITY, {"properties": {}}]},
    ],
)
def test_combined_schemas_stay_open(schema):
    assert close_objects(schema) == schema
