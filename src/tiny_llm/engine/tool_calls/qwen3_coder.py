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

An end tag ends a value only before a tag that may follow it, or at the end of the output, so that
values may contain end tags. A parameter's tag may follow only if the call does not have that
parameter yet.
"""

import json
import re
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Any

from .format import (
    ANY_TEXT,
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
    text_until,
)
from .tool_schema import (
    DEFINITIONS,
    TEXT_KEYWORDS,
    accepts_any_name,
    constrained_text,
    parameters_of,
    properties_of,
    required_of,
    resolve,
    string_schema,
    text_choices,
    to_json,
    value_types,
)

START, FUNCTION = "<tool_call>", "<function="
TEXT_START = f"{START}\n{FUNCTION}"  # of a call, if `START` is not a token
STRING, NULLABLE_STRING = frozenset({"string"}), frozenset({"string", "null"})
UNKNOWN: Function = {"parameters": {}}  # a function that is not among the tools
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
FUNCTION_END, CALL_END = "</function>", "</tool_call>"
# Lark terminals: bare text, the line after it, and ends of a value other than a parameter's tag.
TEXT_TERMINALS = rf"""ANY: /(?s:.*)/
NEXT: "\n{PARAMETER_END}\n"
END_TAG: "{PARAMETER_END}" /\s*/
END: END_TAG ("{FUNCTION_END}" | "{CALL_END}") | "{FUNCTION_END}" /\s*/ "{CALL_END}"
"""
NON_SPACE = re.compile(r"\S")

# (tag, tags that may follow it, whether the tag is consumed with the value)
EndTag = tuple[str, tuple[str, ...], bool]


class Qwen3CoderFormat(ToolCallFormat):
    """XML elements; `<tool_call>` is optional for a known function."""

    name = "qwen3_coder"
    tags = (START, FUNCTION)
    reasoning_tags = (START, FUNCTION)

    def parse(self, source: TextSource, functions: Functions) -> Events:
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
        yield from _parse_parameters(source, functions.get(name, UNKNOWN))
        yield CallEnd()
        yield from source.skip_space()
        yield from source.accept_end(CALL_END)

    def grammar(self, rules: ToolCallRules) -> CallGrammar:
        """See `ToolCallFormat`. Parameters are in schema order."""
        start = rules.special_tokens.get(START)
        lark = tagged_grammar(rules, TEXT_START if start is None else START, "rest", "\n")
        if start is None:
            lark += f"rest: call {literal(CALL_END)}\nthought: {ANY_TEXT}\n"
            lark += f"thought_call: until_call calls\n{text_until('until_call', TEXT_START, {})}"
        else:
            lark += f'rest: "\\n{FUNCTION}" call {tag(CALL_END, rules.special_tokens)}\n'
            lark += f"thought: {ANY_TEXT} ({start} NO_CALL)*\nthought_call: thought {start} calls\n"
            lark += f"NO_CALL: /(?s:.*)/ & ~/\\s*{FUNCTION}(?s:.*)/\n"
        tags: dict[str, str] = {}  # terminals of the parameters' tags, which functions share
        calls = [_CallRules(f"c{i}", function, tags) for i, function in enumerate(rules.functions)]
        lark += f"call: {' | '.join(call.name for call in calls)}\n{TEXT_TERMINALS}"
        for key, terminal in tags.items():
            lark += f"{terminal}: {literal(f'{PARAMETER}{key}>')}\n"
        lark += "".join(rule for call in calls for rule in call.lark)
        return CallGrammar(lark, dict(item for call in calls for item in call.schemas.items()))


def _parse_parameters(source: TextSource, function: Function) -> Events:
    """Parses a call's parameters and end tag; emits a JSON object."""
    schemas, root = properties_of(function), parameters_of(function)
    any_key, keys = accepts_any_name(function), set()
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
        if key in keys:  # JSON objects have no repeated keys
            raise MalformedCallError
        keys.add(key)
        types = value_types(schemas.pop(key, {}), root)
        yield ArgumentsDelta(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        yield from _parse_value(types, _stream_value(source, schemas, any_key))
        separator = ", "


def _parse_value(types: frozenset[str], pieces: Iterator[str | None]) -> Events:
    """Emits a value: a string as it arrives, other values once complete."""
    is_text, text = types == STRING, ""
    if is_text:
        yield ArgumentsDelta('"')
    for piece in pieces:
        if piece is None:
            yield None
        elif is_text:
            yield ArgumentsDelta(json.dumps(piece, ensure_ascii=False)[1:-1])
        else:
            text += piece
    yield ArgumentsDelta('"' if is_text else to_json(text, types))


class _CallRules:
    """Lark rules for a function's calls.

    Rule `tag{i}` is the rest of a call from the tag of parameter i or a later one, and `value{i}`
    its rest from the value of parameter i. Only the next tag shows where bare text ends. Text and
    tag are therefore one lazy terminal, and `text{i}` is text followed by `tag{i}`.

    Args:
        name: name of the rule for a call, and prefix of other names.
        tags: terminals of parameters' tags, by parameter; this function's are added.

    Attributes:
        lark: the rules.
        schemas: JSON schemas that the rules refer to.
    """

    def __init__(self, name: str, function: Function, tags: dict[str, str]):
        self.name = name
        self.lark: list[str] = []
        self.schemas: dict[str, Any] = {}
        self._rules: set[str] = set()
        self._limited_texts: dict[str, str] = {}  # name of the rules for each kind of limited text
        self._properties, self._root = properties_of(function), parameters_of(function)
        keys, required = list(self._properties), required_of(function)
        self._is_required = [key in required for key in keys]
        any_key = accepts_any_name(function)
        terminals = [tags.setdefault(key, f"TAG{len(tags)}") for key in keys]
        # Bare text before parameter i, which contains no tag that may follow there.
        self._texts: list[str] = []
        for i in range(len(keys) + 1):
            is_used = [j < i and self._is_required[j] for j in range(len(keys))]
            self._texts.append(f"{name}_TEXT{sum(is_used)}".upper())
            if (i or not keys) and self._texts[-1] not in self._texts[1:-1]:
                unused = [terminals[j] for j in range(len(keys)) if not is_used[j]]
                self.lark.append(_text_terminal(self._texts[-1], unused, any_key))
        # Choices for parameter i, and last for the end of the call: (tag, rule that follows).
        self._tags = [[(f'{tag} "\\n"', f"{name}value{i}")] for i, tag in enumerate(terminals)]
        self._tags.append([(literal(f"{FUNCTION_END}\n"), "")])
        if any_key:
            self._tags[-1].append((f'"{PARAMETER}" /[^<>\\n]+/ ">\\n"', f"{name}text{len(keys)}"))
            self._rest("text", len(keys), self._texts)
        head = literal(f"{function['name']}>\n")
        self.lark.append(f"{name}: {head} {self._rest('tag', 0)}\n")
        for i, schema in enumerate(self._properties.values()):
            self.lark.append(f"{name}value{i}: {self._value(i, schema)}\n")

    def _rest(self, rule: str, first: int, texts: Sequence[str] = ()) -> str:
        """Adds rules for a call's rest from parameter `first`; returns the name of the first rule.

        `texts` are terminals for the bare text before each parameter, if there is one.
        """
        for i in range(first, len(self._tags)):
            name, choices = f"{self.name}{rule}{i}", []
            is_last = i == len(self._is_required) or self._is_required[i]
            if name in self._rules:
                break
            self._rules.add(name)
            for number, (start, value) in enumerate(self._tags[i]):
                if texts:
                    self.lark.append(f"{name}_{number}[lazy]: {texts[i]} NEXT {start}\n")
                choices.append(f"{f'{name}_{number}' if texts else start} {value}")
            choices += [] if is_last else [f"{self.name}{rule}{i + 1}"]
            self.lark.append(f"{name}: {' | '.join(choices)}\n")
            if is_last:
                break
        return f"{self.name}{rule}{first}"

    def _value(self, i: int, schema: Any) -> str:
        """Returns the Lark expression of rule `value{i}`; adds the rules that it refers to."""
        types, text = value_types(schema, self._root), _text_schema(schema, self._root)
        choices = text_choices(text, "null" in types)
        name = f"{self.name}value{i}"
        if types and "string" not in types:
            self.schemas[name] = _with_definitions(schema, self._root)
            return f"@{name} NEXT {self._rest('tag', i + 1)}"
        if choices is not None:
            return f"({choices}) NEXT {self._rest('tag', i + 1)}"
        if TEXT_KEYWORDS.isdisjoint(text):
            return self._rest("text", i + 1, self._texts)
        limited = constrained_text(text, "null" in types)
        rule = self._limited_texts.setdefault(limited, f"limited{len(self._limited_texts)}_")
        return self._rest(rule, i + 1, [f"({limited})"] * len(self._tags))


def _text_schema(schema: Any, root: Any) -> Mapping[str, Any]:
    """Returns the schema to enforce on a bare value; empty if there is none."""
    target = resolve(schema, root)
    if isinstance(target, Mapping) and ("enum" in target or "const" in target):
        return target
    is_text = value_types(schema, root) <= NULLABLE_STRING
    return string_schema(schema, root) if is_text else {}


def _with_definitions(schema: Any, root: Any) -> Any:
    if not (isinstance(schema, Mapping) and isinstance(root, Mapping)):
        return schema
    return {**{key: root[key] for key in DEFINITIONS if key in root}, **schema}


def _stream_value(
    source: TextSource, next_keys: Collection[str], any_key: bool = False
) -> Generator[str | None, None, None]:
    """Reads a value and its end tag; yields new text, and None to wait for more.

    Args:
        source: text after `<parameter=key>`.
        next_keys: parameters that may follow. On a new line, their tag ends the value without
            `</parameter>`.
        any_key: whether other parameters may follow, too.
    """
    next_tags = tuple(f"{PARAMETER}{key}>" for key in next_keys)
    followers = ((PARAMETER,) if any_key else next_tags) + (FUNCTION_END, CALL_END)
    end_tags: list[EndTag] = [
        (PARAMETER_END, followers, True),
        (FUNCTION_END, (CALL_END,), False),  # ends a value whose </parameter> is missing
        (CALL_END, (), False),  # ends a value only at the end of the output
    ]
    line_tags = [*end_tags, *((tag, ("",), False) for tag in next_tags)]
    while not source.buffer and not source.has_ended:
        yield None
    source.take(source.buffer.startswith("\n"))
    while True:
        is_complete = source.has_ended and not source.is_truncated
        length, end = _find_end(source.buffer, end_tags, line_tags, is_complete)
        if length:
            yield source.take(length)
        if end is not None:
            source.take(end)
            return
        if source.has_ended:
            if source.is_truncated:
                raise MalformedCallError
            source.take(len(source.buffer))  # a final newline
            return
        yield None


def _find_end(
    text: str, end_tags: Sequence[EndTag], line_tags: Sequence[EndTag], has_ended: bool
) -> tuple[int, int | None]:
    """Returns (length of text certainly in the value, length of its end or None).

    `line_tags` are the end tags at the start of a line.
    """
    for match in re.finditer("\n?<", text):
        start, has_newline = match.end() - 1, len(match[0]) == 2
        is_undecided = False
        for end_tag, followers, is_read in line_tags if has_newline else end_tags:
            is_end = _is_end(text, start, end_tag, followers, has_ended)
            if is_end:
                return match.start(), has_newline + len(end_tag) * is_read
            is_undecided |= is_end is None
        if is_undecided:
            return match.start(), None
    return len(text) - text.endswith("\n"), None


def _is_end(
    text: str, start: int, tag: str, followers: tuple[str, ...], has_ended: bool
) -> bool | None:
    """Whether an end tag is at `start`; None if that depends on later text."""
    actual = text[start : start + len(tag)]
    if actual != tag:
        is_prefix = start + len(actual) == len(text) and tag.startswith(actual)
        return None if is_prefix and not has_ended else False
    after = NON_SPACE.search(text, start + len(tag))
    if after is None:
        return has_ended or None
    longest = max(map(len, followers), default=0)
    follower = text[after.start() : after.start() + longest]
    if any(follower.startswith(each) for each in followers):
        return True
    return (has_ended or None) if any(each.startswith(follower) for each in followers) else False


def _text_terminal(name: str, next_tags: Sequence[str], any_key: bool) -> str:
    """Returns a Lark terminal for bare text that `_stream_value` does not end.

    Args:
        next_tags: terminals for the tags of the parameters that may follow.
        any_key: whether other parameters may follow, too.
    """
    tags = f"({' | '.join(next_tags)})"
    ends = ["END"]
    if any_key:
        ends.append(f"END_TAG {literal(PARAMETER)}")
    if next_tags:
        ends.append(f'"\\n" {tags}' if any_key else f'("\\n" | END_TAG) {tags}')
    return f"{name}: ANY & ~(ANY ({' | '.join(ends)}) ANY)\n"
