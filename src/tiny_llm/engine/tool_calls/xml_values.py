"""XML parameter values: end detection in a stream, and bare-text grammar.

An end tag ends a value only before a tag that may follow it, or at the end of the output, so that
values may contain end tags.
"""

import json
import re
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

from .lark import escape_regex, literal
from .text_source import MalformedCallError, TextSource

PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
FUNCTION_END, CALL_END = "</function>", "</tool_call>"
PARAMETER_END_LINE = literal(f"\n{PARAMETER_END}\n")
# Ends of a value: (tag, tags that may follow it, whether the tag is consumed with the value).
VALUE_END_TAGS = (
    (PARAMETER_END, (PARAMETER, FUNCTION_END, CALL_END), True),
    (FUNCTION_END, (CALL_END,), False),  # ends a value whose </parameter> is missing
    (CALL_END, (), False),  # ends a value only at the end of the output
)
LONGEST_TAG = max(len(tag) for _, followers, _ in VALUE_END_TAGS for tag in followers)
NON_SPACE = re.compile(r"\S")

MAX_TEXT_LENGTH = 1000  # larger length bounds on bare text are not enforced
TEXT_KEYWORDS = frozenset({"const", "enum", "pattern", "minLength", "maxLength"})
# Anchors, look-around, word boundaries and backreferences, which the grammar library does not
# support in a pattern; also matches named groups.
UNSUPPORTED_REGEX = re.compile(r"\(\?[=!<]|\\[1-9bB]|(?<![\[\\])\^|(?<!\\)\$")


def stream_value(
    source: TextSource, next_keys: Collection[str]
) -> Generator[str | None, None, None]:
    """Reads a value and its end tag; yields new text, and None to wait for more.

    Args:
        source: text after `<parameter=key>`.
        next_keys: parameters whose tag, on a new line, ends the value without `</parameter>`.

    Raises:
        MalformedCallError: the output was cut off inside the value.
    """
    next_tags = [(f"{PARAMETER}{key}>", ("",), False) for key in next_keys]
    while not source.buffer and not source.has_ended:
        yield None
    source.take(source.buffer.startswith("\n"))
    while True:
        is_complete = source.has_ended and not source.is_truncated
        length, end = _find_end(source.buffer, next_tags, is_complete)
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
    text: str, next_tags: Sequence[tuple[str, tuple[str, ...], bool]], has_ended: bool
) -> tuple[int, int | None]:
    """Returns (length of text certainly in the value, length of its end or None)."""
    for match in re.finditer("\n?<", text):
        start, has_newline = match.end() - 1, len(match[0]) == 2
        is_undecided = False
        for tag, followers, is_read in [*VALUE_END_TAGS, *(next_tags if has_newline else ())]:
            is_end = _is_end(text, start, tag, followers, has_ended)
            if is_end:
                return match.start(), has_newline + len(tag) * is_read
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
    follower = text[after.start() : after.start() + LONGEST_TAG]
    if any(follower.startswith(each) for each in followers):
        return True
    return (has_ended or None) if any(each.startswith(follower) for each in followers) else False


def text_rule(name: str, schema: Mapping[str, Any], is_nullable: bool = False) -> str:
    """Returns a Lark rule for a string parameter's bare text and end tag.

    Args:
        schema: JSON schema of the string. `TEXT_KEYWORDS` are enforced, except for large length
            bounds and patterns that the grammar library does not support.
    """
    null = ' | "null"' if is_nullable else ""
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(choices, list):
        texts = [choice if isinstance(choice, str) else json.dumps(choice) for choice in choices]
        return f"{name}: ({' | '.join(map(literal, texts))}{null}) {PARAMETER_END_LINE}\n"
    terminal = name.upper()
    text = " & ".join([_any_text(schema), *_pattern(schema), f"~/(?s:.*){_end_regex()}(?s:.*)/"])
    return f"{name}[lazy]: {terminal} {PARAMETER_END_LINE}\n{terminal}: ({text}){null}\n"


def _any_text(schema: Mapping[str, Any]) -> str:
    bounds = [schema.get(keyword) for keyword in ("minLength", "maxLength")]
    low, high = (
        bound if type(bound) is int and 0 <= bound <= MAX_TEXT_LENGTH else None for bound in bounds
    )
    if low is None and high is None:
        return "/(?s:.*)/"
    return f"/(?s:.{{{low or 0},{'' if high is None else high}}})/"


def _pattern(schema: Mapping[str, Any]) -> list[str]:
    """Converts `pattern` to Lark, unanchored by default; [] if unsupported."""
    pattern = schema.get("pattern")
    if not isinstance(pattern, str):
        return []
    body = pattern.removeprefix("^").removesuffix("$")
    if UNSUPPORTED_REGEX.search(body) or body.endswith("\\"):
        return []
    before = "" if pattern.startswith("^") else "(?s:.*)"
    after = "" if pattern.endswith("$") else "(?s:.*)"
    escaped = re.sub(r"(?<!\\)/", r"\/", body).replace("\n", "\\n")
    return [f"/{before}(?:{escaped}){after}/"]


def _end_regex() -> str:
    """Returns a regular expression for an end tag and the tag required after it."""
    ends = []
    for tag, followers, _ in VALUE_END_TAGS:
        if followers:
            after = "|".join(map(escape_regex, followers))
            ends.append(f"{escape_regex(tag)}\\s*({after})")
    return f"({'|'.join(ends)})"
