"""Validation of outputs against keywords that a grammar cannot enforce."""

import json

import pytest

from tests.engine.structured_output.test_relaxation import tool
from tiny_llm import StructuredOutputs, ToolCalls
from tiny_llm.engine.structured_output.relaxation import OutputValidator


@pytest.fixture(scope="module")
def validator():
    running = OutputValidator()
    yield running
    running._process.close()


UNIQUE = {"type": "array", "uniqueItems": True}


@pytest.mark.parametrize(
    ("schema", "value", "keyword"),
    [
        (UNIQUE, [1, 2], None),
        (UNIQUE, [1, 1], "/uniqueItems"),
        ({"items": {"not": {"const": 1}}}, [2, 1], "/items/not"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, 1, "/oneOf"),
        ({"type": "string", "pattern": "^(?!a)"}, "ab", "/pattern"),
        ({"properties": {"a/b": UNIQUE}}, {"a/b": [1, 1]}, "/properties/a~1b/uniqueItems"),
        ({"const": 1}, 2, None),  # not validated: the grammar enforces `const`
    ],
)
def test_violated_keywords(validator, schema, value, keyword):
    constraint = StructuredOutputs(json=schema)
    expected = [] if keyword is None else [f"the output violates the JSON schema at '{keyword}'."]
    assert validator.find_violations(constraint, json.dumps(value), []) == expected
    constraint = ToolCalls([tool("other", UNIQUE), tool("look", schema)])
    calls = [("look", json.dumps({"x": value})), ("unknown", "{}"), ("other", '{"x": [1]}')]
    pointer = f"/properties/x{keyword}"
    expected = [f"the output violates the schema of the tool 'look' at '{pointer}'."]
    assert validator.find_violations(constraint, "", calls) == ([] if keyword is None else expected)


def test_all_violated_keywords_are_reported(validator):
    constraint = StructuredOutputs(json={"properties": {"a": UNIQUE, "b": UNIQUE}})
    [sentence] = validator.find_violations(constraint, '{"a": [1, 1], "b": [2, 2]}', [])
    pointers = "'/properties/a/uniqueItems', '/properties/b/uniqueItems'"
    assert sentence == f"the output violates the JSON schema at {pointers}."


@pytest.mark.parametrize(
    ("schema", "text", "reason"),
    [
        ({"not": {"$ref": "http://localhost:9/schema"}}, "1", "_WrappedReferencingError"),
        ({"pattern": "(?!a)(", "not": {"const": 1}}, '"b"', "PatternError|error"),
        ({"pattern": "(?!b)(a+)+$"}, json.dumps("a" * 40 + "b"), "it took longer than 2 seconds"),
        (UNIQUE, "[1, ", "Expecting value"),
    ],
)
def test_hostile_schemas_do_not_end_the_validator(validator, schema, text, reason):
    [message] = validator.find_violations(StructuredOutputs(json=schema), text, [])
    assert message.startswith("the output could not be checked against the JSON schema: ")
    assert any(part in message for part in reason.split("|"))
    constraint = StructuredOutputs(json=UNIQUE)
    assert len(validator.find_violations(constraint, "[1, 1]", [])) == 1


def test_outputs_without_schemas_are_not_validated(validator):
    assert validator.find_violations(StructuredOutputs(choice=["a"]), "a", []) == []
    assert validator.find_violations(StructuredOutputs(json_object=True), "{}", []) == []
