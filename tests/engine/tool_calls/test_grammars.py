"""Tool call grammars accept the template's calls and only calls that parse."""

import json
import random
from functools import cache

import pytest
from jsonschema import Draft202012Validator

from tests.engine import support
from tests.engine.tool_calls.support import (
    TAGS,
    byte_tokenizer,
    format_of,
    parse,
    parsed_arguments,
    random_tool,
    sample,
    write_calls,
)
from tests.engine.tool_calls.templates import TEMPLATES
from tests.support import function_tool, object_schema
from tiny_llm import StructuredOutputs, ToolCalls
from tiny_llm.engine.structured_output.compiler import GrammarCompiler

pytest.importorskip("llguidance")

FAMILIES = list(TEMPLATES)
VOCABULARIES = {"tags": TAGS, "bytes": ()}
PERSON = object_schema(name={"type": "string", "maxLength": 5}, age={"type": "integer"})
LOOKUP_PARAMETERS = {
    "type": "object",
    "properties": {
        "where": {"type": "string", "maxLength": 8},
        "code": {"type": "string", "pattern": "^[A-Z]{2}/[0-9]$"},
        "unit": {"type": "string", "enum": ["°C", "°F"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "near": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        "parts": {"$ref": "#/$defs/parts"},
    },
    "required": ["where", "code", "count"],
    "$defs": {"parts": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
}
LOOKUP = function_tool("look_up", LOOKUP_PARAMETERS)
STOP = function_tool("stop")


@cache
def compiler(family, vocabulary):
    tokenizer = byte_tokenizer(family, VOCABULARIES[vocabulary])
    return GrammarCompiler(tokenizer, len(tokenizer)), tokenizer


def accepts(family, vocabulary, constraint, text):
    grammars, tokenizer = compiler(family, vocabulary)
    return support.accepts(grammars.compile(constraint).matcher, tokenizer, text)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_calls_of_the_template_are_accepted(family, vocabulary):
    for seed in range(6):
        rng = random.Random(f"{family} {seed}")
        tool, draw = random_tool(rng, "write")
        arguments = draw(rng)
        # A tag in the arguments would be encoded as a special token.
        while any(tag in json.dumps(arguments) for tag in TAGS):
            arguments = draw(rng)
        calls = [("write", arguments)]
        text = write_calls(family, calls)
        for constraint in (
            ToolCalls([tool, STOP]),
            ToolCalls([tool, STOP], "required"),
            ToolCalls([tool, STOP], "required", "write", parallel=False),
        ):
            assert accepts(family, vocabulary, constraint, text), text
        assert not accepts(family, vocabulary, ToolCalls([tool, STOP], "required", "stop"), text)
        assert not accepts(family, vocabulary, ToolCalls([tool], "required"), "Hello.")
        assert not accepts(family, vocabulary, ToolCalls([tool], "required"), f"Hello. {text}")
        assert accepts(family, vocabulary, ToolCalls([tool]), "Hello {x} <b>.")
        if family != "llama3":
            calls += [("stop", {})]
            two_calls = write_calls(family, calls)
            assert accepts(family, vocabulary, ToolCalls([tool, STOP], "required"), two_calls)
            assert accepts(family, vocabulary, ToolCalls([tool, STOP]), f"Both: {two_calls}")
            single_call = ToolCalls([tool, STOP], "required", parallel=False)
            assert not accepts(family, vocabulary, single_call, two_calls)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_random_outputs_are_calls(family, vocabulary):
    """Outputs sampled from the grammar are calls that match the schemas."""
    for seed in range(6):
        text = sampled(family, vocabulary, ToolCalls([LOOKUP, STOP], "required"), seed)
        content, calls, _ = parse(format_of(family), text, [LOOKUP, STOP])
        assert (content, bool(calls)) == ("", True), text
        for name, arguments in parsed_arguments(calls):
            if name == "stop":
                assert arguments == {}
            else:
                Draft202012Validator(LOOKUP_PARAMETERS).validate(arguments)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_calls_or_a_structured_response(family, vocabulary):
    response = StructuredOutputs(json=PERSON)
    constraint = ToolCalls([LOOKUP, STOP], response_constraint=response)
    call = write_calls(family, [("stop", {})])
    for text, is_allowed in [
        ('{"name": "Bob", "age": 5}', True),
        ('{"name":"stop","age":5}', True),
        (call, True),
        ('{"name": "Bob"}', False),
        ("Hello.", False),
        (f'{{"name": "Bob", "age": 5}}\n{call}', False),
        (f"Hello. {call}", False),
    ]:
        assert accepts(family, vocabulary, constraint, text) == is_allowed, text
    for seed in range(6):
        text = sampled(family, vocabulary, constraint, seed)
        content, calls, _ = parse(
            format_of(family), text, [LOOKUP, STOP], has_structured_content=True
        )
        if calls:
            assert content == ""
        else:
            Draft202012Validator(PERSON).validate(json.loads(content))


def sampled(family, vocabulary, constraint, seed):
    grammars, tokenizer = compiler(family, vocabulary)
    return sample(grammars.compile(constraint).matcher, tokenizer, random.Random(seed))


@pytest.mark.parametrize(
    ("schema", "allowed", "rejected"),
    [
        ({"enum": [1, "a", None]}, ["1", "a", "null"], ["2", "b"]),
        ({"anyOf": [{"enum": ["a"]}, {"type": "null"}]}, ["a", "null"], ["b"]),
        ({"const": "x\ny"}, ["x\ny"], ["x"]),
        ({"type": "string", "pattern": "b+"}, ["abbc"], ["ac"]),
        ({"type": "string", "pattern": "^a(?=b)"}, ["anything"], []),
        ({"type": "string", "minLength": 2, "maxLength": 10**9}, ["ab", "a" * 99], ["a"]),
        ({"type": ["string", "integer"]}, ["7", "seven"], []),
        ({"type": "integer"}, ["7"], ["seven"]),
    ],
)
def test_values_of_xml_parameters(schema, allowed, rejected):
    constraint = ToolCalls([function_tool("set", object_schema(value=schema))], "required")
    for text in [*allowed, *rejected]:
        call = write_calls("qwen3.5", [("set", {"value": text})])
        assert accepts("qwen3.5", "tags", constraint, call) == (text in allowed), text


def test_tool_without_a_schema_takes_no_arguments():
    for family in FAMILIES:
        empty, with_arguments = (
            write_calls(family, [("stop", arguments)]) for arguments in ({}, {"a": 1})
        )
        assert accepts(family, "tags", ToolCalls([STOP], "required"), empty)
        assert not accepts(family, "tags", ToolCalls([STOP], "required"), with_arguments)
        open_tool = ToolCalls([function_tool("stop", {})], "required")
        assert accepts(family, "tags", open_tool, with_arguments)


TEXT = {"type": "string"}
EDIT_PARAMETERS = object_schema(path=TEXT, text=TEXT)
EDIT_PARAMETERS["properties"] |= {"mode": {"type": "string", "maxLength": 100}, "more": TEXT}
EDIT = function_tool("edit", EDIT_PARAMETERS)


@pytest.mark.parametrize(
    ("value", "is_allowed"),
    [
        ("a\nb", True),
        ("", True),
        ("x </parameter> y", True),
        ("ends with </parameter", True),
        ("a\n</parameter>\nb", True),
        ("</parameter>", True),
        ("\n</parameter>\n", True),
        ("</function>", True),
        ("a</parameter> <parameter=b>", True),
        ("a\n</parameter>\n<parameter=new_string>\nc\n</parameter>\n", True),
        ("\n<parameter=b>", True),
        ("a\n</parameter>\n<parameter=mor>\nc", True),
        # Parameters that the call already has.
        ("a\n</parameter>\n<parameter=path>\nc", True),
        ("a\n<parameter=path>\nc", True),
        # Parameters and ends that may follow.
        ("a\n</parameter>\n<parameter=more>\nc\n</parameter>\n<parameter=more>\n", False),
        ("a</parameter> <parameter=mode>", False),
        ("a\n<parameter=more>", False),
        ("a\n</parameter>\n</function>", False),
    ],
)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_end_tags_in_xml_text(value, is_allowed, vocabulary):
    arguments = {"path": "a.txt", "text": value, "mode": "a\n</parameter>\n<parameter=b>"}
    arguments["more"] = "</parameter>\n\n"
    text = write_calls("qwen3.5", [("edit", arguments)])
    assert accepts("qwen3.5", vocabulary, ToolCalls([EDIT], "required"), text) == is_allowed
    if is_allowed:
        for sizes in ((10**9,), (1,), (7,)):
            for is_stream in (False, True):
                content, calls, _ = parse(format_of("qwen3.5"), text, [EDIT], sizes, is_stream)
                assert (content, parsed_arguments(calls)) == ("", [("edit", arguments)])


@pytest.mark.parametrize("string", [{"type": "string"}, {"type": "string", "maxLength": 100}])
def test_many_optional_strings(string):
    """The limits on grammars admit 128 tools, and a tool with 40 optional strings."""
    schema = {"type": "object", "properties": {f"name_{i}": string for i in range(40)}}
    large = function_tool("large", schema)
    arguments = {"name_3": "a\n</parameter>\n<parameter=b>", "name_38": ""}
    text = write_calls("qwen3.5", [("large", arguments)])
    assert accepts("qwen3.5", "tags", ToolCalls([large]), text)
    few = {"type": "object", "properties": {f"name_{i}": string for i in range(6)}}
    tools = [function_tool(f"tool_{i}", few) for i in range(128)]
    text = write_calls("qwen3.5", [("tool_5", {"name_1": "a", "name_5": "b"})])
    assert accepts("qwen3.5", "tags", ToolCalls(tools), text)
