"""JSON tool calls: parser and grammar shared by several formats."""

import json
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from .format import Function, literal
from .json_scanner import JsonScanner
from .text_source import ArgumentsDelta, CallEnd, CallStart, Events, MalformedCallError, TextSource
from .tool_schema import parameters_of

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
