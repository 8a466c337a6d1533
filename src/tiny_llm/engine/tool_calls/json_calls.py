"""JSON tool calls: the formats of Hermes (Qwen3), Llama 3 and Mistral."""

import json
import re
import secrets
import string
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from .format import (
    ArgumentsDelta,
    CallEnd,
    CallGrammar,
    CallStart,
    Events,
    Function,
    Functions,
    MalformedCallError,
    TextSource,
    ToolCallFormat,
    ToolCallRules,
    literal,
    tag,
    tagged_grammar,
)
from .json_scanner import JsonScanner
from .tool_schema import DEFINITIONS, parameters_of

NAME_REGEX = r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")'
STARTS_WITH_NAME = re.compile(NAME_REGEX)
STARTS_WITH_OTHER_KEY = re.compile(
    r'\{\s*"(?!name"|type"|id"|function"|arguments"|parameters")[^"]*"'
)


def parse_json_call(
    source: TextSource, keys: Sequence[str], names: Collection[str] | None = None
) -> Events:
    """Parses a call like `{"name": "add", "arguments": {"a": 17}}`.

    If the arguments are an object and follow the name, they are emitted as deltas. Calls in any
    other form are emitted once complete.

    Args:
        source: text that starts with `{`.
        keys: keys under which the arguments may appear.
        names: if given, only an object with one of these names and with arguments is a call.
    """
    head = re.compile(NAME_REGEX + rf'\s*,\s*"(?:{"|".join(keys)})"\s*:\s*(?=\{{)')
    scanner, num_scanned = JsonScanner(), 0
    while (match := head.match(source.buffer)) is None:
        if names is not None:
            _check_other_object(source.buffer, names)
        number, is_complete = scanner.feed(source.buffer[num_scanned:])
        num_scanned += number
        if is_complete:
            yield from _whole_call(source.take(num_scanned), keys, names)
            return
        if num_scanned < len(source.buffer) or source.has_ended:
            source.take(num_scanned)
            raise MalformedCallError
        yield None
    name = _loads(match[1])
    if names is not None and name not in names:
        raise MalformedCallError
    yield CallStart(name)
    scanner = JsonScanner()
    scanner.feed(source.take(match.end()))
    yield from _argument_deltas(source, scanner)
    yield CallEnd()
    yield from _discard_remaining(source, scanner)


def _check_other_object(text: str, names: Collection[str]) -> None:
    """Raises as early as possible if a JSON object is a response, not a call."""
    name = STARTS_WITH_NAME.match(text)
    if STARTS_WITH_OTHER_KEY.match(text) or (name is not None and _loads(name[1]) not in names):
        raise MalformedCallError


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedCallError from error


def _whole_call(text: str, keys: Sequence[str], names: Collection[str] | None) -> Events:
    call = _loads(text)
    call = call["function"] if isinstance(call.get("function"), dict) else call
    name = call.get("name")
    given = [key for key in keys if key in call]
    if not isinstance(name, str) or (names is not None and not (given and name in names)):
        raise MalformedCallError
    arguments = _arguments_text(call[given[0]] if given else None)
    yield CallStart(name)
    yield ArgumentsDelta(arguments)
    yield CallEnd()


def _arguments_text(arguments: Any) -> str:
    """Returns arguments as JSON; a string with a JSON object is returned as is."""
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            if isinstance(json.loads(arguments), dict):
                return arguments
    given = {} if arguments is None else arguments
    try:
        return json.dumps(given, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:  # e.g. 1e999, which Python parses as infinity
        raise MalformedCallError from error


def _argument_deltas(source: TextSource, scanner: JsonScanner | None = None) -> Events:
    """Emits an object's text as it arrives, up to its end.

    Args:
        source: text that starts with `{`.
        scanner: scanner that has read the text before the object; None if the object comes first.

    Raises:
        MalformedCallError: the text is not JSON, or the output ended inside it.
    """
    scanner = scanner or JsonScanner()
    depth = scanner.depth
    # [task 5.5.3 arguments]
    while True:
        number, is_complete = scanner.feed(source.buffer, depth)
        is_valid = is_complete or number == len(source.buffer)
        if number:
            yield ArgumentsDelta(source.take(number))
        if is_complete:
            return
        if not is_valid or source.has_ended:
            raise MalformedCallError
        yield None
    # [/task 5.5.3 arguments]


def parse_arguments(source: TextSource) -> Events:
    """Parses a call's arguments, starting at `{`, and ends the call."""
    yield from _argument_deltas(source)
    yield CallEnd()


def _discard_remaining(source: TextSource, scanner: JsonScanner) -> Events:
    """Consumes the text after the arguments, up to the end of the call's JSON object."""
    while True:
        number, is_complete = scanner.feed(source.buffer)
        is_valid = is_complete or number == len(source.buffer)
        source.take(number)
        if is_complete or source.has_ended:
            return
        if not is_valid:
            raise MalformedCallError
        yield None


def json_call_rule(functions: Sequence[Function], key: str, end: str = "") -> str:
    """Returns the Lark rule `call`, which refers to `argument_schemas`.

    `end` is a Lark expression between the arguments and the closing brace.
    """
    calls = []
    for index, function in enumerate(functions):
        name = json.dumps(function["name"], ensure_ascii=False)
        head = f'{{"name": {name}, "{key}": '  # the form in which chat templates render calls
        calls.append(f'{literal(head)} @arguments_{index} {end} "}}"')
    return f"call: {' | '.join(calls)}\n"


def argument_schemas(functions: Sequence[Function]) -> dict[str, Any]:
    return {f"arguments_{i}": parameters_of(function) for i, function in enumerate(functions)}


TOOL_CALL, TOOL_CALL_END = "<tool_call>", "</tool_call>"


class HermesFormat(ToolCallFormat):
    """JSON between tags, the format of Qwen2.5 and Qwen3.

        <tool_call>
        {"name": "add", "arguments": {"a": 17, "b": 25}}
        </tool_call>

    The end tag may be missing, as in vLLM.
    """

    name = "hermes"
    tags = (TOOL_CALL,)

    def parse(self, source: TextSource, functions: Functions) -> Events:
        """See `ToolCallFormat`."""
        # [task 5.5.3 hermes]
        yield from source.skip_space()
        yield from source.accept(TOOL_CALL)
        yield from source.skip_space()
        if not source.buffer.startswith("{"):
            raise MalformedCallError
        yield from parse_json_call(source, ("arguments",))
        yield from source.skip_space()
        yield from source.accept_end(TOOL_CALL_END)
        # [/task 5.5.3 hermes]

    def grammar(self, rules: ToolCallRules) -> CallGrammar:
        """See `ToolCallFormat`. Allows only the whitespace that chat templates write."""
        lark = tagged_grammar(rules, TOOL_CALL, "rest", "\n")
        lark += f'rest: "\\n" call "\\n" {tag(TOOL_CALL_END, rules.special_tokens)}\n'
        lark += json_call_rule(rules.functions, "arguments")
        return CallGrammar(lark, argument_schemas(rules.functions))


PYTHON_TAG = "<|python_tag|>"
# Text that does not start like a call.
PLAIN_TEXT = r'/(?s:.*)/ & ~/\s*\{\s*"name"\s*:(?s:.*)/'


class Llama3JsonFormat(ToolCallFormat):
    """Bare JSON object at the start of the output; if its name is not a tool's, it is text.

        {"name": "add", "parameters": {"a": 17, "b": 25}}

    `<|python_tag|>` may precede it. The chat template rejects messages with several calls. The
    parser accepts several, separated by `; ` as in vLLM; the grammar allows only one.
    """

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
        python_tag = rules.special_tokens.get(PYTHON_TAG)
        optional_tag = f"{python_tag}? " if python_tag is not None else ""
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


TOOL_CALLS, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
ID_LENGTH = 9  # Mistral's chat templates accept only ids of nine letters and digits
ID_PATTERN = f"/[a-zA-Z0-9]{{{ID_LENGTH}}}/"
OPTIONAL_ID = rf"""(", \"id\": \"" {ID_PATTERN} "\"")?"""


class MistralFormat(ToolCallFormat):
    """`[TOOL_CALLS]`, then a JSON list or a name and arguments.

        [TOOL_CALLS] [{"name": "add", "arguments": {"a": 17, "b": 25}}]
        [TOOL_CALLS]add[ARGS]{"a": 17, "b": 25}

    The parser accepts both forms. The grammar uses the list form if `has_list`; otherwise, calls
    may have an id if `has_ids`.
    """

    name = "mistral"
    tags = (TOOL_CALLS,)

    def __init__(self, has_list: bool = True, has_ids: bool = False):
        self._has_list = has_list
        self._has_ids = has_ids

    def parse(self, source: TextSource, functions: Functions) -> Events:
        yield from source.skip_space()
        yield from source.accept(TOOL_CALLS)
        yield from source.skip_space()
        if source.buffer.startswith("["):
            yield from _parse_list(source)
            return
        name = yield from source.read_until((CALL_ID, ARGUMENTS, "{"), "\n")
        if not name.strip():
            raise MalformedCallError
        if (yield from source.accept(CALL_ID)):
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
            lark = tagged_grammar(replace(rules, parallel=False), TOOL_CALLS, "list", "")
            lark += f'list: " "? "[" call{more} "]"\n'
            lark += json_call_rule(rules.functions, "arguments", OPTIONAL_ID)
            return CallGrammar(lark, schemas)
        call_id = f"({tag(CALL_ID, rules.special_tokens)} {ID_PATTERN})? " if self._has_ids else ""
        arguments = tag(ARGUMENTS, rules.special_tokens)
        calls = [
            f"{literal(function['name'])} {call_id}{arguments} @arguments_{index}"
            for index, function in enumerate(rules.functions)
        ]
        lark = tagged_grammar(rules, TOOL_CALLS, "call", "") + f"call: {' | '.join(calls)}\n"
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
