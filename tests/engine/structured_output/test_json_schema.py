"""Closing a schema (`additionalProperties: false`) keeps it satisfiable."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

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
            {"$defs": {"c": CITY}, "properties": {"a": {"$ref": "#/$defs/c"}}},
            {
                "$defs": {"c": CLOSED_CITY},
                "properties": {"a": {"$ref": "#/$defs/c"}},
                "additionalProperties": False,
            },
        ),
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
    ],
)
def test_combined_schemas_stay_open(schema):
    assert close_objects(schema) == schema


NAMES = ["a", "b", "c"]


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    if depth == 3 or (depth and rng.random() < 0.2):
        return rng.choice([{}, {"type": "integer"}, {"type": "object"}, {"enum": [0, {"b": 0}]}])
    schema: dict[str, Any] = {}
    if rng.random() < 0.6:
        schema["properties"] = {
            name: random_schema(rng, depth + 1) for name in rng.sample(NAMES, rng.randint(1, 2))
        }
    if rng.random() < 0.4:
        schema["required"] = rng.sample(NAMES, rng.randint(1, 2))
    if rng.random() < 0.4:
        schema["anyOf"] = [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 2))]
    if depth < 2 and rng.random() < 0.2:
        schema["$ref"] = "#/$defs/shared"
    if rng.random() < 0.1:
        schema["additionalProperties"] = rng.choice([True, False, {"type": "integer"}])
    if rng.random() < 0.2:
        schema |= {"items": random_schema(rng, depth + 1), "minItems": rng.randint(0, 1)}
    if rng.random() < 0.1:
        schema["enum"] = [0, {"a": 0, "b": 0}, [{"c": 0}]]
    if not depth:
        schema["$defs"] = {"shared": random_schema(rng, depth=2)}
    return schema


def random_document(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth == 3 or kind < 0.2:
        return 0
    if kind < 0.8:
        names = sorted(rng.sample(NAMES, rng.randint(0, 3)))
        return {name: random_document(rng, depth + 1) for name in names}
    return [random_document(rng, depth + 1) for _ in range(rng.randint(0, 1))]


def smaller_documents(document: Any) -> Iterator[Any]:
    """Yields copies of the document without one property or item, at any depth."""
    parts = document if isinstance(document, list | dict) else []
    for key in parts if isinstance(parts, dict) else range(len(parts)):
        rest = parts.copy()
        part = rest.pop(key)
        yield rest
        for smaller in smaller_documents(part):
            changed = parts.copy()
            changed[key] = smaller
            yield changed


def shrink(document: Any, is_valid_and_accepted) -> Any:
    """Removes properties and items while the document stays valid."""
    for smaller in smaller_documents(document):
        if is_valid_and_accepted(smaller):
            return shrink(smaller, is_valid_and_accepted)
    return document


class Grammar:
    """llguidance grammar of a schema, for a vocabulary of single bytes."""

    def __init__(self, llguidance, schema: Any):
        self._tokenizer = llguidance.LLTokenizer("byte")
        guided = {**schema, "x-guidance": {"whitespace_pattern": ""}}
        grammar = json.dumps({"grammars": [{"json_schema": guided}]})
        self._matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)

    def accepts(self, document: Any) -> bool:
        matcher = self._matcher.deep_copy()
        tokens = self._tokenizer.tokenize_str(json.dumps(document, separators=(",", ":")))
        return matcher.consume_tokens(tokens) and matcher.is_accepting()


@pytest.mark.slow
def test_minimal_documents_stay_valid(exhaustive):
    llguidance = pytest.importorskip("llguidance")
    num_checked = num_closed = 0
    for seed in range(2000 if exhaustive else 200):
        rng = random.Random(seed)
        schema = random_schema(rng)
        closed = close_objects(schema)
        is_valid = Draft202012Validator(schema).is_valid
        grammar, closed_grammar = Grammar(llguidance, schema), Grammar(llguidance, closed)

        def is_valid_and_accepted(document, is_valid=is_valid, grammar=grammar):
            return is_valid(document) and grammar.accepts(document)

        for document in filter(is_valid_and_accepted, [random_document(rng) for _ in range(30)]):
            minimal = shrink(document, is_valid_and_accepted)
            assert closed_grammar.accepts(minimal), (schema, closed, minimal)
            num_checked += 1
            num_closed += closed != schema
    assert num_checked > 400
    assert num_closed > 40
