"""Each format: detection, common variants, missing end tags, value types."""

import json

import pytest

from tests.engine.tool_calls.support import format_of, parse, parsed_arguments
from tests.engine.tool_calls.templates import TEMPLATES
from tests.support import function_tool, object_schema
from tiny_llm import UserError
from tiny_llm.engine.tool_calls.registry import AUTO, NAMES, find_format
from tiny_llm.engine.tool_calls.tool_schema import to_json, value_types

TOOLS = [function_tool("weather", object_schema(city={"type": "string"}, days={"type": "integer"}))]
OSLO_CALL = [("weather", {"city": "Oslo"})]


FORMATS = {
    "qwen3": "hermes",
    "qwen3-coder": "qwen3_coder",
    "qwen3.5": "qwen3_coder",
    "llama3": "llama3_json",
    "mistral-list": "mistral",
    "mistral-args": "mistral",
    "gemma4": "gemma4",
}


def test_format_is_detected_from_the_template_or_given_by_name():
    for family, name in FORMATS.items():
        assert format_of(family).name == name
        assert find_format(AUTO, {"default": "x", "tool_use": TEMPLATES[family]}).name == name
    assert [find_format(name, None).name for name in NAMES] == list(NAMES)
    assert find_format(AUTO, None).name == "hermes"
    assert find_format("hermes", TEMPLATES["llama3"]).name == "hermes"
    assert find_format(AUTO, "<|start_header_id|> {{ messages }}").name == "hermes"
    assert find_format(AUTO, "{{ '<|python_tag|>' }}").name == "llama3_json"
    with pytest.raises(UserError, match="tool_call_parser must be one of auto, .* got 'json'"):
        find_format("json", None)


# Only known and unused parameters end a value.
CITY = "a\n</parameter>\n<parameter=town>\nb\n</parameter>\n<parameter=city>\nc\n<parameter=city>"
WEATHER_CALL = "<tool_call>\n<function=weather>\n"
PARAMETERS = [
    ("<parameter=city>\nOslo\n<parameter=days>\n3\n", "Oslo"),
    (
        f"<parameter=city>\n{CITY}\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "</function>\n</tool_call>",
        CITY,
    ),
]
# Calls without end tags, or without whitespace between tags.
VARIANTS = [
    ("qwen3", '<tool_call>{"name":"weather","arguments":{"city":"Oslo"}}'),
    ("qwen3", '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}'),
    ("qwen3", '<tool_call>{"arguments": {"city": "Oslo"}, "name": "weather"}'),
    ("qwen3", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}, "why": "?"}'),
    ("qwen3", r'<tool_call>{"name": "weather", "arguments": "{\"city\": \"Oslo\"}"}'),
    ("qwen3.5", "<tool_call>\n<function=weather>\n<parameter=city>\nOslo"),
    ("qwen3.5", "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>"),
    ("qwen3.5", "<tool_call><function=weather><parameter=city>Oslo</function></tool_call>"),
    ("qwen3.5", "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</tool_call>"),
    ("qwen3.5", "<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>"),
    ("llama3", '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo"}}'),
    ("llama3", ' {"name": "weather", "arguments": {"city": "Oslo"}}'),
    ("llama3", '{"type": "function", "name": "weather", "parameters": {"city": "Oslo"}}'),
    ("mistral-list", '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}'),
    ("mistral-list", '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}'),
    ("mistral-args", '[TOOL_CALLS]weather{"city": "Oslo"}'),
    ("mistral-args", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}]'),
    ("gemma4", '<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|><|tool_response>'),
    ("gemma4", '<|tool_call> call:weather{ <|"|>city<|"|>: <|"|>Oslo<|"|> }'),
    ("gemma4", "<|tool_call>call:weather{city:Oslo}<tool_call"),
]
TWO_CALLS = [
    ("llama3", '{"name": "weather", "parameters": {}}; {"name": "weather", "parameters": {}}'),
    ("qwen3", '<tool_call>{"name": "weather"}\n<tool_call>{"name": "weather"}</tool_call>'),
    ("qwen3.5", "<tool_call><function=weather></function><function=weather></tool_call>"),
    ("qwen3.5", f"{WEATHER_CALL}{WEATHER_CALL}"),
]
# Arguments other than an object.
ARGUMENTS = {'"hello"': "hello", "5": 5, "[1]": [1], "null": {}, r'"{\"a\": 1}"': {"a": 1}}
CALLS = [
    *((family, text, OSLO_CALL) for family, text in VARIANTS),
    *((family, text, [("weather", {})] * 2) for family, text in TWO_CALLS),
    *(
        ("qwen3.5", f"{WEATHER_CALL}{text}", [("weather", {"city": city, "days": 3})])
        for text, city in PARAMETERS
    ),
    *(
        (
            "qwen3",
            f'<tool_call>{{"name": "weather", "arguments": {arguments}}}</tool_call>',
            [("weather", expected)],
        )
        for arguments, expected in ARGUMENTS.items()
    ),
]


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("family", "text", "expected"), CALLS)
def test_parsed_calls(family, text, expected, is_stream, size):
    content, calls, parser = parse(format_of(family), text, TOOLS, (size,), is_stream)
    assert (content, parsed_arguments(calls)) == ("", expected)
    assert not parser.has_incomplete_call


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("qwen3.5", "<tool_call>\nno"),
        ("qwen3.5", "The tag <function=other> is unknown."),
        ("qwen3.5", "<tool_call>\n<function=weather>\n<param>x"),
        ("llama3", '<|python_tag|>search("x")'),
        ("llama3", '{"name": "other", "parameters": {}}'),
        ("mistral-args", "[TOOL_CALLS]\n"),
        ("mistral-list", "[TOOL_CALLS] [1]"),
    ],
)
def test_malformed_calls_are_text(family, text):
    assert parse(format_of(family), text, TOOLS, (1,))[:2] == (text, [])


def test_repeated_parameter_of_an_unknown_function():
    text = "<tool_call>\n<function=other>\n<parameter=a>\n1\n</parameter>\n"
    assert parse(format_of("qwen3.5"), text + "<parameter=b>\n2", TOOLS)[1] == [
        ("other", '{"a": "1", "b": "2"}')
    ]
    text += "<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>"
    content, calls, parser = parse(format_of("qwen3.5"), text, TOOLS)
    assert (content, calls, parser.has_incomplete_call) == (text, [], True)


def test_string_arguments_are_streamed():
    text = f"<tool_call>\n<function=weather>\n<parameter=city>\n{'x' * 50}"
    whole = text + "\n</parameter>\n</function>\n</tool_call>"
    _, calls, _ = parse(format_of("qwen3.5"), text, TOOLS, (7,), True, is_truncated=True)
    [(_, arguments)] = calls
    assert arguments == '{"city": "' + "x" * 50
    assert parsed_arguments(parse(format_of("qwen3.5"), whole, TOOLS)[1])[0][1]["city"] == "x" * 50


def test_call_ids():
    for family in TEMPLATES:
        ids = {format_of(family).new_call_id() for _ in range(50)}
        assert len(ids) == 50
        if family.startswith("mistral"):
            assert all(len(i) == 9 and i.isalnum() and i.isascii() for i in ids)
            assert format_of(family).valid_call_id("toolu_01ABcdEFghIJ") == "BcdEFghIJ"
            assert format_of(family).valid_call_id("call-7") == "0000call7"
        else:
            assert all(i.startswith("call_") for i in ids)
            assert format_of(family).valid_call_id("call-7") == "call-7"


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "5.5", "5.5"),
        ({"type": "number"}, " 5 ", 5),
        ({"type": "boolean"}, "True", True),
        ({"type": ["string", "null"]}, "None", None),
        ({"type": ["string", "null"]}, '"a"', '"a"'),
        ({"type": ["string", "integer"]}, "5", 5),
        ({"type": "string", "enum": ["null"]}, "null", "null"),
        ({"enum": [1, "a"]}, "1", 1),
        ({"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}, "[1]", [1]),
        ({"allOf": [{"$ref": "#/$defs/a"}]}, "[1]", [1]),
        ({"$ref": "#/$defs/missing"}, "5", "5"),
        ({}, '{"a": 1}', {"a": 1}),
        ({}, "5", "5"),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "array"}, "[" * 100_000, "[" * 100_000),
    ],
)
def test_types_of_xml_parameter_values(schema, text, expected):
    root = {"$defs": {"a": {"type": "array"}}}
    assert json.loads(to_json(text, value_types(schema, root))) == expected


def test_recursive_schema():
    recursive = {"anyOf": [{"$ref": "#"}] * 50}
    assert value_types(recursive, recursive) == frozenset()
    assert value_types({"$ref": "#/a"}, {"a": {"$ref": "#/a"}}) == frozenset()
