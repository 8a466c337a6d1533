"""Builds llguidance grammars: reasoning, then the structured body.

A grammar is a list of named subgrammars, in Lark or as JSON schemas. The first is Lark and refers
to the others as `@name`. In Lark, `<think>` is the special token of that name. Models without that
token write the tag as text, matched by a *lazy* (shortest-match) rule.

Source: llguidance's grammar documentation.
"""

import json
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any

from ..inputs.structured_outputs import StructuredOutputs, ToolCalls, schema_to_json
from .json_schema import close_objects

SubGrammar = dict[str, Any]

# Between JSON tokens. Without an upper bound, a model may generate spaces forever.
WHITESPACE = r"[ \n]{0,4}"
ANY_TEXT = r"/(.|\n)*/"
AFTER_THINKING = r"/\n{0,2}/"
ANY_OBJECT = json.dumps({"type": "object"})


class ThinkingState(StrEnum):
    """Reasoning state at the start of an output."""

    NONE = "none"  # with the body: no reasoning, or closed by the template
    POSSIBLE = "possible"  # with <think> or the body
    OPEN = "open"  # within the reasoning: the template ends with <think>


def build_grammar(
    form: StructuredOutputs | ToolCalls, thinking: ThinkingState, special_tokens: Collection[str]
) -> str:
    """Builds the grammar of an output, as JSON for llguidance.

    Args:
        form: constraint on the body.
        thinking: reasoning state at the start of the output.
        special_tokens: special tokens of the vocabulary in angle brackets.
    """
    body, *parts = _body_grammars(form, special_tokens)
    if thinking is ThinkingState.NONE:
        return json.dumps({"grammars": [body, *parts]})
    start = f"start: reasoning {AFTER_THINKING} @body\n"
    if thinking is ThinkingState.POSSIBLE:
        start = f"start: ({_tag('<think>', special_tokens)} reasoning {AFTER_THINKING})? @body\n"
    lark = start + _text_until("reasoning", "</think>", special_tokens)
    return json.dumps({"grammars": [{"lark_grammar": lark}, {**body, "name": "body"}, *parts]})


def _body_grammars(
    form: StructuredOutputs | ToolCalls, special_tokens: Collection[str]
) -> list[SubGrammar]:
    """Returns the subgrammars of a body; the first is unnamed."""
    if isinstance(form, ToolCalls):
        return _tool_call_grammars(form, special_tokens)
    if form.regex is not None:
        return [{"lark_grammar": f"start: {_regex(form.regex)}\n"}]
    if form.choice is not None:
        return [{"lark_grammar": f"start: {' | '.join(map(_literal, form.choice))}\n"}]
    if form.grammar is not None:
        return [{"lark_grammar": form.grammar}]
    assert isinstance(form.json, str | None)
    return [_json_grammar(form.json or ANY_OBJECT)]


def _tool_call_grammars(form: ToolCalls, special_tokens: Collection[str]) -> list[SubGrammar]:
    """Returns the subgrammars for tool calls, optionally after text.

    Calls use the chat template's format for earlier calls. Most of a call is therefore forced, and
    the next turn is a prefix cache hit.
    """
    functions = [tool["function"] for tool in form.tools]
    if form.name is not None:
        functions = [function for function in functions if function["name"] == form.name]
    calls, parts = [], []
    for index, function in enumerate(functions):
        name = json.dumps(function["name"], ensure_ascii=False)
        head = _literal(f'{{"name": {name}, "arguments": ')
        calls.append(f'{head} @arguments_{index} "}}"')
        schema = schema_to_json(function.get("parameters") or {"type": "object"})
        parts.append(_json_grammar(schema, f"arguments_{index}", is_lenient=form.choice == "auto"))
    closing = _tag("</tool_call>", special_tokens)
    lark = f'rest: "\\n" call "\\n" {closing}\ncall: {" | ".join(calls)}\n'
    if form.choice == "required":
        more = f'("\\n" {_tag("<tool_call>", special_tokens)} rest)*' if form.parallel else ""
        lark += f"start: {_tag('<tool_call>', special_tokens)} rest {more}\n"
    else:
        number = "*" if form.parallel else "?"
        lark += f"start: (opened rest){number} last\n"
        lark += _text_until("opened", "<tool_call>", special_tokens)
        lark += f"last: {_text_without('<tool_call>', special_tokens)}\n"
    return [{"lark_grammar": lark}, *parts]


def _text_until(rule: str, end: str, special_tokens: Collection[str]) -> str:
    """Returns a rule for text without `end`, followed by `end`."""
    if end in special_tokens:
        return f"{rule}: {ANY_TEXT} {end}\n"
    return f"{rule}[lazy]: {ANY_TEXT} {_literal(end)}\n"


def _text_without(end: str, special_tokens: Collection[str]) -> str:
    """Returns an expression for text without `end`, after the last tool call."""
    if end in special_tokens:
        return ANY_TEXT
    return "LAST\nLAST: /(?s:.*)/ & ~/(?s:.*)" + end.replace("/", r"\/") + "(?s:.*)/"


def _tag(token: str, special_tokens: Collection[str]) -> str:
    return token if token in special_tokens else _literal(token)


def _json_grammar(schema: str, name: str | None = None, is_lenient: bool = False) -> SubGrammar:
    """Returns a JSON schema subgrammar, with llguidance's options in the schema.

    Keywords that llguidance does not support, such as `propertyNames`, are ignored if `is_lenient`,
    and rejected otherwise.
    """
    value = close_objects(json.loads(schema))
    if isinstance(value, dict):
        options = {"whitespace_pattern": WHITESPACE, "lenient": is_lenient}
        value = {**value, "x-guidance": options}
    part = {"json_schema": value}
    return part if name is None else {"name": name, **part}


def _literal(text: str) -> str:
    """Quotes a string for Lark, as JSON does."""
    return json.dumps(text, ensure_ascii=False)


def _regex(regex: str) -> str:
    """Quotes a regular expression for Lark, in slashes."""
    return "/(?:" + _with_escaped_slashes(regex) + ")/"


def _with_escaped_slashes(regex: str) -> str:
    escaped, is_escaped = [], False
    for character in regex:
        if character == "/" and not is_escaped:
            escaped.append("\\")
        escaped.append("\\n" if character == "\n" and not is_escaped else character)
        is_escaped = character == "\\" and not is_escaped
    return "".join(escaped)


def initial_thinking_state(tail: str, enable_thinking: bool) -> ThinkingState:
    """Determines the reasoning state at the start of an output.

    Args:
        tail: end of the prompt's text.
        enable_thinking: whether the chat template enables reasoning and the model supports it.
    """
    tail = tail.rstrip()
    if tail.endswith("<think>"):
        return ThinkingState.OPEN
    return (
        ThinkingState.POSSIBLE
        if enable_thinking and not tail.endswith("</think>")
        else ThinkingState.NONE
    )


def special_token_names(tokens: Sequence[str]) -> frozenset[str]:
    """Returns the added tokens that a grammar can refer to by name."""
    return frozenset(token for token in tokens if token.startswith("<") and token.endswith(">"))
