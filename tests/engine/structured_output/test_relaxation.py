"""Schemas that no grammar fully enforces: relaxed, or rejected if strict."""

import json
import logging

import pytest

from tests.support import function_tool, object_schema
from tiny_llm import StructuredOutputs, ToolCalls, UserError
from tiny_llm.engine.structured_output.compiler import GrammarCompiler

pytest.importorskip("llguidance")


@pytest.fixture(scope="module")
def grammars(llm) -> GrammarCompiler:
    return llm.grammars


def tool(name: str, schema: dict, **fields: object) -> dict:
    return function_tool(name, object_schema(x=schema), **fields)


# The JSON schema that pydantic 2.11 generates for `Decimal`.
DECIMAL = {
    "anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]
}
ANY_OF_TYPES = [{"type": "number"}, {"type": "integer"}]
# Schema, JSON pointers of the removed keywords, a value that the relaxed schema still rejects.
RELAXED = [
    ({"type": "string", "format": "path"}, ["/format"], 1),
    ({"type": "string", "format": "date", "title": "a"}, [], "tomorrow"),
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, ["/uniqueItems"], ["a"]),
    ({"type": "string", "pattern": "^(?!a)b"}, ["/pattern"], 1),
    ({"type": "string", "pattern": "\\bb"}, ["/pattern"], 1),
    ({"type": "integer", "format": "int32", "not": {"const": 1}}, ["/not"], "a"),
    ({"type": "object", "propertyNames": {"pattern": "^a"}}, ["/propertyNames"], 1),
    ({"type": "string", "not": {"const": "a"}}, ["/not"], 1),
    ({"type": "string", "if": {"const": "a"}, "then": {"minLength": 2}}, ["/if"], 1),
    ({"type": "array", "contains": {"const": 1}, "minContains": 2}, ["/contains"], 1),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, ["/dependentRequired"], 1),
    ({"type": "object", "unevaluatedProperties": False}, ["/unevaluatedProperties"], 1),
    ({"oneOf": ANY_OF_TYPES}, ["/oneOf"], "a"),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, [], 1.5),
    (DECIMAL, ["/anyOf/1/pattern"], []),
    ({"anyOf": [{"type": "string", "format": "binary"}, {"const": 1}]}, ["/anyOf/0/format"], 2),
    (
        {"type": "object", "patternProperties": {"^(?!a)": {}}, "additionalProperties": False},
        ["/patternProperties"],
        1,
    ),
    # Bounds beyond the grammar library's numbers, such as those of float64 and int64.
    ({"type": "number", "minimum": -1.7976931348623157e308}, ["/minimum"], "a"),
    ({"maximum": 1e39, "minimum": 3}, ["/maximum"], 2),
    ({"type": "number", "exclusiveMaximum": 10**39}, ["/exclusiveMaximum"], "a"),
    ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, ["/minimum"], 2**63),
    ({"type": "integer", "multipleOf": 10**12}, ["/multipleOf"], 0.5),
    (
        {"type": "object", "properties": {"a/b": {}, "c": {}}, "minProperties": 1},
        ["/minProperties"],
        1,
    ),
    (
        {"type": "object", "properties": {"a/b": {"type": "integer", "not": {"const": 1}}}},
        ["/properties/a~1b/not"],
        {"a/b": "c"},
    ),
]


@pytest.mark.parametrize(("schema", "removed", "invalid_value"), RELAXED)
def test_unenforceable_keywords_are_removed_or_rejected(
    llm, grammars, caplog, schema, removed, invalid_value
):
    valid, look = tool("other", {"type": "string"}), tool("look", schema)
    with caplog.at_level(logging.WARNING, "tiny_llm.engine"):
        matcher = grammars.compile(ToolCalls([valid, look], "required", name="look")).matcher
    pointers = ", ".join(repr(f"/properties/x{pointer}") for pointer in removed)
    expected = f"the schema of the tool 'look' is only partially enforced: {pointers} cannot be"
    messages = [record.getMessage() for record in caplog.records]
    assert [message.startswith(expected) for message in messages] == [True] * bool(removed)
    call = '<tool_call>\n{"name": "look", "arguments": {"x": '
    assert matcher.consume_tokens(llm.tokenizer.encode(call))
    rest = llm.tokenizer.encode(json.dumps(invalid_value) + "}}\n</tool_call>")
    assert matcher.try_consume_tokens(rest) < len(rest), (
        "keywords that were not removed must still be enforced"
    )

    strict = ToolCalls([valid, tool("look", schema, strict=True)], "required")
    if not removed:
        grammars.compile(strict)
        return
    grammars.compile(ToolCalls([valid, look], "required"))  # fills the cache
    with pytest.raises(UserError) as raised:
        grammars.compile(strict)
    expected = f"the tool 'look' is strict, but these keywords cannot be enforced: {pointers};"
    assert expected in str(raised.value)
    with pytest.raises(UserError, match="the JSON schema is strict"):
        grammars.compile(StructuredOutputs(json=schema))
    grammars.compile(StructuredOutputs(json=schema, strict=False))


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "any"}, "/properties/x"),
        ({"type": "array", "items": {"type": "any"}, "uniqueItems": True}, "/properties/x/items"),
        ({"$ref": "#/$defs/missing"}, "/properties/x"),
    ],
)
def test_invalid_schemas_are_rejected_with_tool_and_pointer(grammars, schema, pointer, choice):
    constraint = ToolCalls([tool("a", {"type": "string"}), tool("look", schema)], choice)
    with pytest.raises(UserError, match=f"the tool 'look' is rejected at '{pointer}': "):
        grammars.compile(constraint)


def test_relaxed_object_accepts_the_properties_of_its_conditions(llm, grammars):
    """An object stays open if its `then` requires an undeclared property."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "if": {"required": ["a"]},
        "then": {"required": ["b"]},
    }
    matcher = grammars.compile(StructuredOutputs(json=schema, strict=False)).matcher
    tokens = llm.tokenizer.encode('{"a": 1, "b": 2}')
    assert matcher.try_consume_tokens(tokens) == len(tokens)


def test_checks_are_limited_in_time(grammars, monkeypatch):
    monkeypatch.setattr("tiny_llm.engine.structured_output.relaxation.MAX_SECONDS", 0.0)
    with pytest.raises(UserError, match="checking it takes more than"):
        grammars.compile(StructuredOutputs(json={"not": {}}, strict=False))
