"""Construction of llguidance grammars, and its error messages reworded.

A grammar has reasoning, then a structured body. It is a list of subgrammars, each in Lark or a JSON
schema. The first is the start; it refers to the others, if any, as `@name` in Lark.

The library's error messages contain positions in its source code, options that only its callers can
set, and multi-line excerpts of the grammar.

Source: llguidance's grammar documentation.
"""

import json
import re
import textwrap
from enum import StrEnum
from typing import Any

from ..inputs.sampling_params import NESTED_TOO_DEEPLY, StructuredOutputs, ToolCalls, schema_to_json
from ..tool_calls.format import (
    SpecialTokens,
    ToolCallFormat,
    ToolCallRules,
    literal,
    tag,
    text_until,
)
from ..tool_calls.harmony import GENERATION_PROMPT, structured_grammar

SubGrammar = dict[str, Any]

# Allowed between JSON tokens. Without an upper bound, a model may generate spaces forever.
WHITESPACE = r"[ \n]{0,4}"
AFTER_THINKING = r"/\n{0,2}/"
GRAMMAR_FAILED = "the grammar failed: "  # prefix of error messages during generation

# Keywords with which `close_objects` could contradict another keyword or schema.
COMBINING_KEYWORDS = frozenset(
    {
        *("allOf", "oneOf", "not", "if", "dependentSchemas", "dependencies", "extends"),
        *("patternProperties", "propertyNames", "unevaluatedProperties", "minProperties"),
        *("dependentRequired", "contains", "$dynamicRef", "$recursiveRef"),
    }
)
# A schema with one of these keywords is closable only without the other and CONTENT_KEYWORDS.
REFERRING_KEYWORDS = frozenset({"anyOf", "$ref"})
CONTENT_KEYWORDS = frozenset(
    {
        *("properties", "required", "additionalProperties", "const", "enum"),
        *("items", "prefixItems", "additionalItems", "unevaluatedItems"),
    }
)
SCHEMA_MAPS = frozenset({"properties", "$defs", "definitions"})
NON_SCHEMA_KEYWORDS = frozenset({"const", "enum", "default", "examples", "x-guidance"})


class ThinkingState(StrEnum):
    NONE = "none"  # the output starts with the body, without reasoning
    POSSIBLE = "possible"  # the output starts with the opening tag or the body
    MESSAGES = "messages"  # the output starts with the header of one of gpt-oss's messages
    OPEN = "open"  # the prompt ends with the opening tag, so the output starts with reasoning


def build_grammar(
    constraint: StructuredOutputs | ToolCalls,
    thinking: ThinkingState,
    special_tokens: SpecialTokens,
    tool_call_format: ToolCallFormat,
    think_tags: tuple[str, str],
) -> str:
    """Builds the grammar of a whole output, reasoning included, as JSON for llguidance."""
    start, end = think_tags
    if isinstance(constraint, ToolCalls):
        body, *parts = _tool_call_grammars(constraint, special_tokens, tool_call_format)
    else:
        body, parts = _body_grammar(constraint), []
    if thinking is ThinkingState.MESSAGES:
        if isinstance(constraint, StructuredOutputs):
            parts = [{**body, "name": "body"}]
            body = {"lark_grammar": structured_grammar(special_tokens)}
        return json.dumps({"grammars": [body, *parts]})
    if thinking is ThinkingState.NONE:
        return json.dumps({"grammars": [body, *parts]})
    content, reasoning = "@body", f"reasoning {AFTER_THINKING} @body"
    lark = text_until("reasoning", end, special_tokens)
    parts.insert(0, {**body, "name": "body"})
    if isinstance(constraint, ToolCalls) and tool_call_format.reasoning_tags is not None:
        closing = f"thought {special_tokens[end]}" if end in special_tokens else "reasoning"
        content, reasoning = "body", f"({closing} {AFTER_THINKING} body | thought_call)"
        lark += parts.pop(0)["lark_grammar"].replace("start:", "body:", 1)
    if thinking is ThinkingState.POSSIBLE:
        name, bracket, label = start.partition(">")  # a special token and a label
        opening = f"{tag(name + bracket, special_tokens)} {literal(label) if label else ''}"
        reasoning = f"{opening} {reasoning} | {content}"
    return json.dumps({"grammars": [{"lark_grammar": f"start: {reasoning}\n{lark}"}, *parts]})


def _body_grammar(constraint: StructuredOutputs) -> SubGrammar:
    if constraint.regex is not None:
        return {"lark_grammar": f"start: {_regex(constraint.regex)}\n"}
    if constraint.choice is not None:
        return {"lark_grammar": f"start: {' | '.join(map(literal, constraint.choice))}\n"}
    if constraint.grammar is not None:
        return {"lark_grammar": constraint.grammar}
    assert isinstance(constraint.json, str | None)
    return _json_grammar(constraint.json or '{"type": "object"}')


def _tool_call_grammars(
    constraint: ToolCalls, special_tokens: SpecialTokens, tool_call_format: ToolCallFormat
) -> list[SubGrammar]:
    """Returns the subgrammars for output with tool calls; the first is unnamed.

    The grammar allows only the format in which the chat template renders earlier calls. Most of a
    call's tokens are therefore forced, and the call is a prefix cache hit in the next turn.
    """
    functions = [tool["function"] for tool in constraint.tools]
    if constraint.name is not None:
        functions = [function for function in functions if function["name"] == constraint.name]
    choice = constraint.choice if constraint.response_constraint is None else "structured"
    rules = ToolCallRules(functions, choice, constraint.parallel, special_tokens)
    grammar = tool_call_format.grammar(rules)
    is_lenient = constraint.choice == "auto"
    parts = [
        {"name": name, **_json_grammar(schema_to_json(schema), is_lenient)}
        for name, schema in grammar.schemas.items()
    ]
    if constraint.response_constraint is not None:
        parts.append({"name": "response", **_body_grammar(constraint.response_constraint)})
    return [{"lark_grammar": grammar.lark}, *parts]


def _json_grammar(schema: str, is_lenient: bool = False) -> SubGrammar:
    """Returns a JSON schema subgrammar; the schema contains llguidance's options.

    Keywords that llguidance does not support, such as `propertyNames`, are ignored if `is_lenient`
    and rejected otherwise.
    """
    value = close_objects(json.loads(schema))
    if isinstance(value, dict):
        options = {"whitespace_pattern": WHITESPACE, "lenient": is_lenient}
        value = {**value, "x-guidance": options}
    return {"json_schema": value}


def _regex(regex: str) -> str:
    escaped, is_escaped = [], False
    for character in regex:
        if character == "/" and not is_escaped:
            escaped.append("\\")
        escaped.append("\\n" if character == "\n" and not is_escaped else character)
        is_escaped = character == "\\" and not is_escaped
    return f"/(?:{''.join(escaped)})/"


def initial_thinking_state(
    tail: str, enable_thinking: bool, think_tags: tuple[str, str]
) -> ThinkingState:
    """Determines the reasoning state after a prompt that ends with `tail`.

    `enable_thinking` means that the chat template enables reasoning and the model supports it.
    """
    start, end = think_tags
    tail = tail.rstrip()
    if tail.endswith(GENERATION_PROMPT):
        return ThinkingState.MESSAGES
    if tail.endswith(start):
        return ThinkingState.OPEN
    is_possible = enable_thinking and not tail.endswith(end)
    return ThinkingState.POSSIBLE if is_possible else ThinkingState.NONE


def close_objects(schema: Any) -> Any:
    """Closes a JSON schema's objects: `"additionalProperties": false`.

    By default, a schema allows any additional properties, which a small model may invent until it
    reaches `max_tokens`. Closing a schema narrows it. If several schemas apply to one value,
    however, each would forbid the others' properties; the whole schema is then returned as is.

    Source: vLLM, whose grammars are "strict" by default.
    """
    return _close(schema) if _is_closable(schema) else schema


def _is_closable(schema: Any) -> bool:
    if isinstance(schema, list):
        return all(map(_is_closable, schema))
    if not isinstance(schema, dict):
        return True
    keywords = schema.keys()
    if keywords & COMBINING_KEYWORDS:
        return False
    if (
        keywords & REFERRING_KEYWORDS
        and len(keywords & (REFERRING_KEYWORDS | CONTENT_KEYWORDS)) > 1
    ):
        return False
    for keyword in keywords - NON_SCHEMA_KEYWORDS:
        part = schema[keyword]
        is_map = keyword in SCHEMA_MAPS and isinstance(part, dict)
        if not _is_closable(list(part.values()) if is_map else part):
            return False
    return True


def _close(schema: Any) -> Any:
    if isinstance(schema, list):
        return list(map(_close, schema))
    if not isinstance(schema, dict):
        return schema
    closed: dict[str, Any] = {}
    for keyword, part in schema.items():
        if keyword in SCHEMA_MAPS and isinstance(part, dict):
            closed[keyword] = {name: _close(value) for name, value in part.items()}
        else:
            closed[keyword] = part if keyword in NON_SCHEMA_KEYWORDS else _close(part)
    named, required = schema.get("properties"), schema.get("required", [])
    if (
        isinstance(named, dict)
        and isinstance(required, list)
        and all(isinstance(name, str) and name in named for name in required)
        and not {"const", "enum"} & schema.keys()
    ):
        closed.setdefault("additionalProperties", False)
    return closed


MAX_CHARS = 200  # maximum length of a clause in an error message
# Characters searched at each end of a message: messages quote the client's grammar, and the search
# takes quadratic time.
MAX_SEARCHED_CHARS = 1_000

# (pattern in the library's message, clause that replaces the message).
MESSAGE_REWRITES = (
    (r"NoExtension", "it matches no text"),
    (r"^recursion limit exceeded", NESTED_TOO_DEEPLY),
    (
        r"oneOf constraints are not supported",
        "the alternatives of oneOf may match the same value, which is not supported; use anyOf",
    ),
    (r"Unimplemented keys: \[(.+?)\]", r"unsupported keywords in the JSON schema: \1"),
    (r"Unknown format: (.+)", r"the format '\1' is not supported"),
    (r"Invalid type: (.+)", r"'\1' is not a JSON Schema type"),
    (r"Pointer '(.*?)' does not exist", r"the $ref '#\1' does not exist in the JSON schema"),
    (r"Resource '(.*?)' is not present", r"the $ref '\1' points outside the JSON schema"),
    (r"Expected f64 for '(.+?)', got (.+)", r"\1 in the JSON schema must be a number, got \2"),
    (r"(\w+ must be an? .+)", r"in the JSON schema, \1"),
    (r"Unsatisfiable schema: (.+)", r"no value matches the JSON schema: \1"),
    (r"regex parse error:(?s:.)+error: (.+)", r"invalid regular expression: \1"),
    (r"lookarounds not supported", "look-around in regular expressions is not supported"),
    (r"duplicate rule: (\".+?\")", r"the rule \1 is defined twice"),
    (r"unknown name: (\".+?\")", r"the rule \1 is not defined"),
    (r"no start rule found", 'the rule "start" is not defined'),
    (r"unknown special token: (\".+?\")", r"\1 is not a special token of the model"),
    (r"Unknown common regex: ([\w.]+)", r"unknown common regex \1"),
    (r"(\d+)\(\d+\): Expected token (.+?), found (.+?) \(at", r"line \1: expected \2, got \3"),
)


def grammar_error(message: str) -> str:
    """Condenses an llguidance error to one clause, without a period."""
    if len(message) > 2 * MAX_SEARCHED_CHARS:
        message = f"{message[:MAX_SEARCHED_CHARS]} … {message[-MAX_SEARCHED_CHARS:]}"
    for pattern, clause in MESSAGE_REWRITES:
        found = re.search(pattern, message)
        if found is not None:
            message = found.expand(clause)
            break
    text = message.partition("\n   1 |")[0].replace("<non-verbose/>", "")
    return textwrap.shorten(text, MAX_CHARS, placeholder=" …").rstrip(". ") or "it is not valid"
