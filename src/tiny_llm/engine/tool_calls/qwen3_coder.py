"""Format of Qwen3-Coder and Qwen3.5: XML elements with bare text.

    <tool_call>
    <function=add>
    <parameter=a>
    17
    </parameter>
    </function>
    </tool_call>

A string parameter's value is bare text, without the newlines next to the tags; other values are
JSON. Missing end tags are tolerated, as in vLLM.
"""

import json
from collections.abc import Mapping
from typing import Any

from .format import CallGrammar, Function, Functions, ToolCallFormat, ToolCallRules, tagged_grammar
from .lark import literal, tag
from .text_source import ArgumentsDelta, CallEnd, CallStart, Events, MalformedCallError, TextSource
from .tool_schema import (
    DEFINITIONS,
    parameters_of,
    properties_of,
    resolve,
    string_schema,
    to_json,
    value_types,
)
from .xml_values import (
    CALL_END,
    FUNCTION_END,
    PARAMETER,
    PARAMETER_END_LINE,
    TEXT_KEYWORDS,
    stream_value,
    text_rule,
)

START, FUNCTION = "<tool_call>", "<function="
STRING, NULLABLE_STRING = frozenset({"string"}), frozenset({"string", "null"})


class Qwen3CoderFormat(ToolCallFormat):
    """XML elements; `<tool_call>` is optional for a known function."""

    name = "qwen3_coder"
    tags = (START, FUNCTION)

    def parse(self, source: TextSource, functions: Functions) -> Events:
        """See `ToolCallFormat`."""
        yield from source.skip_space()
        has_start = yield from source.accept(START)
        yield from source.skip_space()
        if not (yield from source.accept(FUNCTION)):
            raise MalformedCallError
        name = yield from source.read_until((">",), "\n<")
        source.take(1)
        if not name or (name not in functions and not has_start):
            raise MalformedCallError
        yield CallStart(name)
        yield from _parse_parameters(source, functions.get(name) or {})
        yield CallEnd()
        yield from source.skip_space()
        yield from source.accept_end(CALL_END)

    def grammar(self, rules: ToolCallRules) -> CallGrammar:
        """See `ToolCallFormat`. Parameters are in schema order."""
        lark = tagged_grammar(rules, START, "rest", "\n")
        lark += f'rest: "\\n" call {tag(CALL_END, rules.special_tokens)}\n'
        calls = [f"call_{index}" for index in range(len(rules.functions))]
        lark += f"call: {' | '.join(calls)}\n" + text_rule("text", {})
        schemas: dict[str, Any] = {}
        for call, function in zip(calls, rules.functions, strict=True):
            lark += _call_rules(call, function, schemas)
        return CallGrammar(lark, schemas)


def _parse_parameters(source: TextSource, function: Function) -> Events:
    """Parses a call's parameters and end tag; emits a JSON object."""
    schemas, root = properties_of(function), parameters_of(function)
    separator = "{"
    while True:
        yield from source.skip_space()
        found = yield from source.peek(PARAMETER, FUNCTION_END, CALL_END, START, FUNCTION)
        if found != PARAMETER:
            if not found and (source.buffer or source.is_truncated):
                raise MalformedCallError
            source.take(len(found) if found == FUNCTION_END else 0)
            yield ArgumentsDelta("{}" if separator == "{" else "}")
            return
        source.take(len(PARAMETER))
        key = yield from source.read_until((">",), "\n<")
        source.take(1)
        schema = schemas.pop(key, {})
        yield ArgumentsDelta(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        yield from _parse_value(source, value_types(schema, root), schemas)
        separator = ", "


def _parse_value(source: TextSource, types: frozenset[str], next_keys: Any) -> Events:
    """Parses a value; emits a string as it arrives, other values once complete."""
    is_text, text = types == STRING, ""
    if is_text:
        yield ArgumentsDelta('"')
    for piece in stream_value(source, next_keys):
        if piece is None:
            yield None
        elif is_text:
            yield ArgumentsDelta(json.dumps(piece, ensure_ascii=False)[1:-1])
        else:
            text += piece
    yield ArgumentsDelta('"' if is_text else to_json(text, types))


def _call_rules(call: str, function: Function, schemas: dict[str, Any]) -> str:
    """Returns a call's Lark rules; adds their JSON schemas to `schemas`."""
    root = parameters_of(function)
    resolved = resolve(root, root)
    resolved = resolved if isinstance(resolved, Mapping) else {}
    required = [name for name in resolved.get("required") or () if isinstance(name, str)]
    properties = properties_of(function)
    properties |= {name: {} for name in required if name not in properties}
    lark, parameters = "", []
    for index, (key, schema) in enumerate(properties.items()):
        rule = f"{call}_{index}"
        start, types = literal(f"{PARAMETER}{key}>\n"), value_types(schema, root)
        if types and "string" not in types:
            schemas[rule] = _with_definitions(schema, root)
            lark += f"{rule}: {start} @{rule} {PARAMETER_END_LINE}\n"
        elif TEXT_KEYWORDS.isdisjoint(text := _text_schema(schema, root)):
            lark += f"{rule}: {start} text\n"
        else:
            lark += f"{rule}: {start} {rule}_text\n"
            lark += text_rule(f"{rule}_text", text, "null" in types)
        parameters.append(rule if key in required else f"{rule}?")
    if "properties" not in resolved and resolved.get("additionalProperties") is not False:
        lark += f'{call}_any: "{PARAMETER}" /[^<>\\n]+/ ">\\n" text\n'
        parameters.append(f"{call}_any*")
    head, end = literal(f"{FUNCTION}{function['name']}>\n"), literal(f"{FUNCTION_END}\n")
    return f"{call}: {head} {' '.join(parameters)} {end}\n{lark}"


def _text_schema(schema: Any, root: Any) -> Mapping[str, Any]:
    """Returns the schema to enforce on a bare value; empty if there is none."""
    target = resolve(schema, root)
    if isinstance(target, Mapping) and ("enum" in target or "const" in target):
        return target
    is_text = value_types(schema, root) <= NULLABLE_STRING
    return string_schema(schema, root) if is_text else {}


def _with_definitions(schema: Any, root: Any) -> Any:
    """Returns a parameter's schema, with the definitions that it may reference."""
    if not (isinstance(schema, Mapping) and isinstance(root, Mapping)):
        return schema
    return {**{key: root[key] for key in DEFINITIONS if key in root}, **schema}
