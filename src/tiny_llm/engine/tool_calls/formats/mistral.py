"""Mistral: `[TOOL_CALLS]`, then a JSON list or a name and arguments.

    [TOOL_CALLS] [{"name": "add", "arguments": {"a": 17, "b": 25}}]
    [TOOL_CALLS]add[ARGS]{"a": 17, "b": 25}

Chat templates accept only call ids of nine letters and digits.
"""

import re
import secrets
import string
from dataclasses import replace

from ..format import (
    CallGrammar,
    Functions,
    ToolCallFormat,
    ToolCallRules,
    literal,
    tag,
    tagged_grammar,
)
from ..json_calls import argument_schemas, json_call_rule, parse_arguments, parse_json_call
from ..text_source import CallStart, Events, MalformedCallError, TextSource

START, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
ID_LENGTH = 9
ID_PATTERN = f"/[a-zA-Z0-9]{{{ID_LENGTH}}}/"
OPTIONAL_ID = rf"""(", \"id\": \"" {ID_PATTERN} "\"")?"""


class MistralFormat(ToolCallFormat):
    """`[TOOL_CALLS]`, then a list of calls or one call; see the module docstring.

    The parser accepts both forms. The grammar uses the list form if `has_list`; otherwise, calls
    may have an id if `has_ids`.
    """

    name = "mistral"
    tags = (START,)

    def __init__(self, has_list: bool = True, has_ids: bool = False):
        self._has_list = has_list
        self._has_ids = has_ids

    def parse(self, source: TextSource, functions: Functions) -> Events:
        yield from source.skip_space()
        yield from source.accept(START)
        yield from source.skip_space()
        if source.buffer.startswith("["):
            yield from _parse_list(source)
            return
        name = yield from source.read_until((ID, ARGUMENTS, "{"), "\n")
        if not name.strip():
            raise MalformedCallError
        if (yield from source.accept(ID)):
            yield from source.read_until((ARGUMENTS, "{"), "\n")
        yield from source.accept(ARGUMENTS)
        yield from source.skip_space()
        if not source.buffer.startswith("{"):
            raise MalformedCallError
        yield CallStart(name.strip())
        yield from parse_arguments(source)

    def grammar(self, rules: ToolCallRules) -> CallGrammar:
        schemas = argument_schemas(rules.functions)
        if self._has_list:
            more = ' (", " call)*' if rules.parallel else ""
            # One `[TOOL_CALLS]` tag: the list after it contains all calls.
            lark = tagged_grammar(replace(rules, parallel=False), START, "list", "")
            lark += f'list: " "? "[" call{more} "]"\n'
            lark += json_call_rule(rules.functions, "arguments", OPTIONAL_ID)
            return CallGrammar(lark, schemas)
        call_id = f"({tag(ID, rules.special_tokens)} {ID_PATTERN})? " if self._has_ids else ""
        arguments = tag(ARGUMENTS, rules.special_tokens)
        calls = [
            f"{literal(function['name'])} {call_id}{arguments} @arguments_{index}"
            for index, function in enumerate(rules.functions)
        ]
        lark = tagged_grammar(rules, START, "call", "") + f"call: {' | '.join(calls)}\n"
        return CallGrammar(lark, schemas)

    def new_call_id(self) -> str:
        return "".join(
            secrets.choice(string.ascii_letters + string.digits) for _ in range(ID_LENGTH)
        )

    def valid_call_id(self, call_id: str) -> str:
        """Returns the last nine letters and digits of `call_id`, padded with zeros."""
        return re.sub(r"[^a-zA-Z0-9]", "", call_id)[-ID_LENGTH:].rjust(ID_LENGTH, "0")


def _parse_list(source: TextSource) -> Events:
    source.take(1)
    while True:
        yield from source.skip_space()
        if not source.buffer.startswith("{"):
            raise MalformedCallError
        yield from parse_json_call(source, ("arguments",))
        yield from source.skip_space()
        if not (yield from source.accept(",")):
            yield from source.accept("]")
            return
