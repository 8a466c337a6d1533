"""Llama 3: a bare JSON object at the start of the output.

    {"name": "add", "parameters": {"a": 17, "b": 25}}

`<|python_tag|>` may precede it. The chat template rejects messages with several calls. The parser
accepts several, separated by `; ` as in vLLM; the grammar allows only one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..format import CallGrammar, Function, Functions, ToolCallFormat, ToolCallRules
from ..json_calls import argument_schemas, json_call_rule, parse_json_call
from ..text_source import Events, MalformedCallError, TextSource
from ..tool_schema import DEFINITIONS, parameters_of

PYTHON_TAG = "<|python_tag|>"
# Text that does not start like a call.
PLAIN_TEXT = r'/(?s:.*)/ & ~/\s*\{\s*"name"\s*:(?s:.*)/'


class Llama3JsonFormat(ToolCallFormat):
    """A bare JSON object; an object whose name is not a tool's is text."""

    name = "llama3_json"
    tags = (PYTHON_TAG,)
    first_tags = ("{",)

    def parse(self, source: TextSource, functions: Functions) -> Events:
        yield from source.skip_space()
        yield from source.accept(PYTHON_TAG)
        while True:
            yield from source.skip_space()
            if not source.buffer.startswith("{"):
                raise MalformedCallError
            yield from parse_json_call(source, ("parameters", "arguments"), functions)
            yield from source.skip_space()
            separator = yield from source.accept(";")
            if not separator and not source.buffer.startswith("{"):
                return

    def grammar(self, rules: ToolCallRules) -> CallGrammar:
        schemas = argument_schemas(rules.functions)
        # Only JSON schemas: a Lark literal would take precedence over the schema of `response`.
        if rules.choice == "structured":
            calls = _call_schemas(rules.functions)
            names = " | ".join(f"@{name}" for name in [*calls, "response"])
            return CallGrammar(f"start: {names}\n", calls)
        lark = json_call_rule(rules.functions, "parameters")
        if rules.choice == "required":
            return CallGrammar(f"start: call\n{lark}", schemas)
        tag = rules.special_tokens.get(PYTHON_TAG)
        optional_tag = f"{tag}? " if tag is not None else ""
        return CallGrammar(
            f"start: {optional_tag}call | PLAIN_TEXT\nPLAIN_TEXT: {PLAIN_TEXT}\n{lark}", schemas
        )


def _call_schemas(functions: Sequence[Function]) -> dict[str, Any]:
    schemas = {}
    for index, function in enumerate(functions):
        parameters = parameters_of(function)
        schema = {
            "type": "object",
            "properties": {"name": {"const": function["name"]}, "parameters": parameters},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        # `$ref` is relative to the root of the schema, so the definitions are copied there.
        if isinstance(parameters, Mapping):
            schema |= {key: parameters[key] for key in DEFINITIONS if key in parameters}
        schemas[f"call_{index}"] = schema
    return schemas
