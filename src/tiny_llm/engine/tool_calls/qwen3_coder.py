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
from collections.abc import Iterator, Mapping, Sequence
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
    accepts_any_name,
    parameters_of,
    properties_of,
    required_of,
    resolve,
    string_schema,
    to_json,
    value_types,
)
from .xml_values import (
    CALL_END,
    FUNCTION_END,
    PARAMETER,
    TEXT_KEYWORDS,
    TEXT_TERMINALS,
    constrained_text,
    stream_value,
    text_choices,
    text_terminal,
)

START, FUNCTION = "<tool_call>", "<function="
TEXT_START = f"{START}\n{FUNCTION}"  # of a call, if `START` is not a token
STRING, NULLABLE_STRING = frozenset({"string"}), frozenset({"string", "null"})
UNKNOWN: Function = {"parameters": {}}  # a function that is not among the tools


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
        yield from _parse_value(types, stream_value(source, schemas, any_key))
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
                self.lark.append(text_terminal(self._texts[-1], unused, any_key))
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
