"""One grammar for a whole answer: what the model thinks, and then the answer's body.

A grammar is a list of named parts. The first is Lark, and calls the others as `@name`; each is Lark
or a JSON schema. In Lark, `<think>` is the special token of that name. A model whose vocabulary has
none writes the same characters as text, which a *lazy* rule finds: it matches as little as it can.

Source: llguidance's documentation of its grammars.
"""

import json
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any

from ..inputs.structured_outputs import StructuredOutputs, ToolCalls, schema_to_json
from .json_schema import close_objects

SubGrammar = dict[str, Any]

# Between the values of a JSON text. Without an upper bound, a model may write spaces for ever.
WHITESPACE = r"[ \n]{0,4}"
ANY_TEXT = r"/(.|\n)*/"
AFTER_THINKING = r"/\n{0,2}/"
ANY_OBJECT = json.dumps({"type": "object"})


class ThinkingState(StrEnum):
    """What an answer begins with."""

    NONE = "none"  # the body: the model does not think, or the template has closed its thinking
    POSSIBLE = "possible"  # <think>, or the body
    OPEN = "open"  # thoughts: the template has written <think>


def build_grammar(
    form: StructuredOutputs | ToolCalls, thinking: ThinkingState, special_tokens: Collection[str]
) -> str:
    """The grammar of an answer, as JSON that llguidance reads.

    Args:
        form: of the body.
        thinking: what comes before it.
        special_tokens: those of the vocabulary that are written in angle brackets.
    """
    body, *parts = _body_grammars(form, special_tokens)
    if thinking is ThinkingState.NONE:
        return json.dumps({"grammars": [body, *parts]})
    start = f"start: thoughts {AFTER_THINKING} @body\n"
    if thinking is ThinkingState.POSSIBLE:
        start = f"start: ({_tag('<think>', special_tokens)} thoughts {AFTER_THINKING})? @body\n"
    lark = start + _text_until("thoughts", "</think>", special_tokens)
    return json.dumps({"grammars": [{"lark_grammar": lark}, {**body, "name": "body"}, *parts]})


def _body_grammars(
    form: StructuredOutputs | ToolCalls, special_tokens: Collection[str]
) -> list[SubGrammar]:
    """The parts of a body; the first has no name."""
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
    """Calls, or text and then calls.

    A call is written as the chat template writes those of the past, so most of it is forced, and a
    later turn finds its tokens in the prefix cache.
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
    """A rule for any text, and then `end`, which the text does not contain."""
    if end in special_tokens:
        return f"{rule}: {ANY_TEXT} {end}\n"
    return f"{rule}[lazy]: {ANY_TEXT} {_literal(end)}\n"


def _text_without(end: str, special_tokens: Collection[str]) -> str:
    """Any text in which `end` does not appear, for what may follow the last one."""
    if end in special_tokens:
        return ANY_TEXT
    return "LAST\nLAST: /(?s:.*)/ & ~/(?s:.*)" + end.replace("/", r"\/") + "(?s:.*)/"


def _tag(token: str, special_tokens: Collection[str]) -> str:
    return token if token in special_tokens else _literal(token)


def _json_grammar(schema: str, name: str | None = None, is_lenient: bool = False) -> SubGrammar:
    """A part that is a JSON schema; its options stand in the schema.

    A lenient one does without the keywords that llguidance does not know, such as `propertyNames`;
    otherwise it refuses them.
    """
    value = close_objects(json.loads(schema))
    if isinstance(value, dict):
        options = {"whitespace_pattern": WHITESPACE, "lenient": is_lenient}
        value = {**value, "x-guidance": options}
    part = {"json_schema": value}
    return part if name is None else {"name": name, **part}


def _literal(text: str) -> str:
    """A text in Lark's quotes, which are JSON's."""
    return json.dumps(text, ensure_ascii=False)


def _regex(regex: str) -> str:
    """A regular expression between Lark's slashes."""
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
    """What an answer begins with.

    Args:
        tail: the end of the prompt's text.
        enable_thinking: whether the chat template was told to let the model think, and the model
            can.
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
    """Those of a vocabulary's added tokens that a grammar can name."""
    return frozenset(token for token in tokens if token.startswith("<") and token.endswith(">"))
