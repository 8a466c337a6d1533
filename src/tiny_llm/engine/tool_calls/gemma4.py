"""Gemma 4: JSON-like arguments with `<|"|>` as quotes.

    <|tool_call>call:add{a:17,unit:<|"|>km<|"|>}<tool_call|>

Keys are not quoted; strings are not escaped. Chat templates sort keys case-insensitively.
"""

import json
from collections.abc import Mapping
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
    SpecialTokens,
    TextSource,
    ToolCallFormat,
    ToolCallRules,
    literal,
    tag,
    tagged_grammar,
    text_until,
)
from .tool_schema import (
    TEXT_KEYWORDS,
    accepts_any_name,
    constrained_text,
    parameters_of,
    resolve,
    to_json,
)

CALL_START, END, CALL, QUOTE = "<|tool_call>", "<tool_call|>", "call:", '<|"|>'
RESPONSE = "<|tool_response>"  # generated after the last call, usually as an EOS token
SCALARS = frozenset({"number", "boolean", "null"})
MAX_DEPTH = 100  # of nested arguments
MAX_ITEMS = 1000  # larger `minItems` and `maxItems` are not enforced
ANY_VALUE = """\
any_value: any_string | any_object | any_list | @any_scalar | "None"
any_object: "{" (any_member ("," any_member)*)? "}"
any_list: "[" (any_value ("," any_value)*)? "]"
any_member: KEY ":" any_value
KEY: /[^:{}\\[\\],<>\\n]+/
"""


class Gemma4Format(ToolCallFormat):
    name = "gemma4"
    tags = (CALL_START,)

    def parse(self, source: TextSource, functions: Functions) -> Events:
        yield from source.skip_space()
        yield from source.accept(CALL_START)
        yield from source.skip_space()
        if not (yield from source.accept(CALL)):
            raise MalformedCallError
        name = yield from source.read_until(("{",), "\n<")
        if not name.strip():
            raise MalformedCallError
        yield CallStart(name.strip())
        yield from _parse_members(source, "}", 0)
        yield CallEnd()
        yield from source.skip_space()
        yield from source.accept_end(END)
        yield from source.accept_end(RESPONSE)

    def grammar(self, rules: ToolCallRules) -> CallGrammar:
        values = _ValueRules(rules.special_tokens)
        calls = [f"{literal(CALL + f['name'])} {values.arguments(f)}" for f in rules.functions]
        lark = tagged_grammar(rules, CALL_START, "rest", "")
        lark += f"rest: call {tag(END, rules.special_tokens)}\ncall: {' | '.join(calls)}\n"
        return CallGrammar(lark + "".join(values.lark), values.schemas)


def _parse_value(source: TextSource, depth: int) -> Events:
    """Parses a value and emits it as JSON: a string as it arrives, a bare word once complete."""
    yield from source.skip_space()
    match (yield from source.peek(QUOTE, "{", "[")):
        case "{":
            yield from _parse_members(source, "}", depth + 1)
        case "[":
            yield from _parse_members(source, "]", depth + 1)
        case "":
            text = yield from source.read_until((",", "}", "]"), "{[\n<")
            if not text.strip():
                raise MalformedCallError
            yield ArgumentsDelta(to_json(text.strip(), SCALARS))
        case _:
            yield from _parse_string(source)


def _parse_members(source: TextSource, end: str, depth: int) -> Events:
    """Parses an object or a list, including its brackets."""
    if depth > MAX_DEPTH:
        raise MalformedCallError
    yield ArgumentsDelta(source.take(1))
    keys: set[str] = set()
    is_first = True
    while True:
        yield from source.skip_space()
        if (yield from source.accept(end)):
            yield ArgumentsDelta(end)
            return
        if not is_first:
            if not (yield from source.accept(",")):
                raise MalformedCallError
            yield ArgumentsDelta(", ")
        if end == "}":
            key = yield from _read_key(source)
            if key in keys:  # JSON objects have no repeated keys
                raise MalformedCallError
            keys.add(key)
            yield ArgumentsDelta(f"{json.dumps(key, ensure_ascii=False)}: ")
        yield from _parse_value(source, depth)
        is_first = False


def _read_key(source: TextSource) -> Any:
    yield from source.skip_space()
    is_quoted = bool((yield from source.accept(QUOTE)))
    ends, invalid = ((QUOTE,), "") if is_quoted else ((":",), "{}[],<\n")
    key = yield from source.read_until(ends, invalid)
    source.take(len(QUOTE) if is_quoted else 0)
    yield from source.skip_space()
    if not (yield from source.accept(":")):
        raise MalformedCallError
    return key if is_quoted else key.strip()


def _parse_string(source: TextSource) -> Events:
    source.take(len(QUOTE))
    yield ArgumentsDelta('"')
    while True:
        text, quote, _ = source.buffer.partition(QUOTE)
        prefixes = (QUOTE[:length] for length in range(len(QUOTE) - 1, 0, -1))
        held = next((len(each) for each in prefixes if text.endswith(each)), 0)
        safe = source.take(len(text) if quote else len(text) - held)
        if safe:
            yield ArgumentsDelta(json.dumps(safe, ensure_ascii=False)[1:-1])
        if quote:
            source.take(len(QUOTE))
            yield ArgumentsDelta('"')
            return
        if source.has_ended:
            raise MalformedCallError
        yield None


class _ValueRules:
    """Lark rules for the values that JSON schemas allow.

    Of the keywords for objects and lists, `properties`, `required`, `items` and bounds on a list's
    length are enforced; schemas with other combinations than `anyOf` and `oneOf` allow any value.

    Attributes:
        lark: the rules.
        schemas: JSON schemas of numbers and booleans, to which the rules refer.
    """

    def __init__(self, special_tokens: SpecialTokens):
        self._special_tokens = special_tokens
        self._quote = tag(QUOTE, special_tokens)
        self.lark = [f"any_string: {self._quote} string_rest\n", ANY_VALUE]
        self.lark.append(text_until("string_rest", QUOTE, special_tokens))
        self.schemas: dict[str, Any] = {"any_scalar": {"type": sorted(SCALARS)}}
        # (rule, schema) by the ids of root and schema, because schemas may be recursive.
        self._rules: dict[tuple[int, int], tuple[str, Any]] = {}
        self._root: Any = None

    def arguments(self, function: Function) -> str:
        """Adds the rules for a function's arguments; returns the name of the top-level rule."""
        self._root = parameters_of(function)
        return "any_object" if accepts_any_name(function) else self._rule(self._root)

    def _rule(self, schema: Any) -> str:
        schema = resolve(schema, self._root)
        key = id(self._root), id(schema)
        if key not in self._rules:
            name = f"value{len(self._rules)}"
            self._rules[key] = name, schema
            self.lark.append(f"{name}: {self._value(name, schema)}\n")
        return self._rules[key][0]

    def _value(self, name: str, schema: Any) -> str:
        """Returns the Lark expression of the rule `name`."""
        if not isinstance(schema, Mapping):
            return "any_value"
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(choices, list):
            return " | ".join(map(self._constant, choices))
        for parts in (schema.get("anyOf"), schema.get("oneOf")):
            if isinstance(parts, list) and parts:
                return " | ".join(map(self._rule, parts))
        given = schema.get("type", "object" if "properties" in schema else None)
        types = given if isinstance(given, list) else [given]
        return " | ".join(self._of_type(f"{name}_{kind}", kind, schema) for kind in types)

    def _of_type(self, name: str, kind: Any, schema: Mapping[str, Any]) -> str:
        match kind:
            case "string":
                return self._string(name, schema)
            case "object" if "properties" in schema or schema.get("additionalProperties") is False:
                return self._object(name, schema)
            case "object":
                return "any_object"
            case "array":
                return self._list(schema)
            case "null":
                return '"null" | "None"'
            case "integer" | "number" | "boolean":
                self.schemas[name] = {**schema, "type": kind}
                return f"@{name}"
        return "any_value"

    def _string(self, name: str, schema: Mapping[str, Any]) -> str:
        if TEXT_KEYWORDS.isdisjoint(schema):
            return "any_string"
        is_lazy = "" if QUOTE in self._special_tokens else "[lazy]"
        text = name.upper()
        self.lark.append(f"{text}: {constrained_text(schema, False)}\n")
        self.lark.append(f"{name}{is_lazy}: {text} {self._quote}\n")
        return f"{self._quote} {name}"

    def _list(self, schema: Mapping[str, Any]) -> str:
        item = self._rule(schema["items"]) if "items" in schema else "any_value"
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        low = min(low, MAX_ITEMS) if type(low) is int else 0
        high = high if type(high) is int and high <= MAX_ITEMS else None
        if high == 0:
            return '"[" "]"'
        more = f'("," {item}){{{max(low - 1, 0)},{"" if high is None else high - 1}}}'
        items = f"{item} {more}"
        return f'"[" {items} "]"' if low else f'"[" ({items})? "]"'

    def _object(self, name: str, schema: Mapping[str, Any]) -> str:
        """Adds two rules per key for the rest of an object: `first` and `after` an earlier member.

        A rule matches the key's member or, if the key is optional, skips it.
        """
        properties = schema.get("properties") or {}
        required = schema.get("required") or ()
        unlisted: dict[str, Any] = {key: {} for key in required if key not in properties}
        members = sorted({**properties, **unlisted}.items(), key=lambda item: item[0].lower())
        for number, (key, value) in enumerate(members):
            member = f"{literal(f'{key}:')} {self._rule(value)} {name}_after{number + 1}"
            for state, comma in (("first", ""), ("after", '"," ')):
                skipped = "" if key in required else f" | {name}_{state}{number + 1}"
                self.lark.append(f"{name}_{state}{number}: {comma}{member}{skipped}\n")
        self.lark += [f'{name}_{state}{len(members)}: "}}"\n' for state in ("first", "after")]
        return f'"{{" {name}_first0'

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self._quote} {literal(value) if value else ''} {self._quote}"
        return '"null" | "None"' if value is None else literal(json.dumps(value))
