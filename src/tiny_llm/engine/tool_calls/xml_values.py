"""XML parameter values: end detection in a stream, and bare-text grammar.

An end tag ends a value only before a tag that may follow it, or at the end of the output, so that
values may contain end tags. A parameter's tag may follow only if the call does not have that
parameter yet.
"""

import json
import re
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

from .format import MalformedCallError, TextSource, literal

PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
FUNCTION_END, CALL_END = "</function>", "</tool_call>"
# Lark terminals: bare text, the line after it, and ends of a value other than a parameter's tag.
TEXT_TERMINALS = rf"""ANY: /(?s:.*)/
NEXT: "\n{PARAMETER_END}\n"
END_TAG: "{PARAMETER_END}" /\s*/
END: END_TAG ("{FUNCTION_END}" | "{CALL_END}") | "{FUNCTION_END}" /\s*/ "{CALL_END}"
"""
NON_SPACE = re.compile(r"\S")

MAX_TEXT_LENGTH = 1000  # larger length bounds on bare text are not enforced
TEXT_KEYWORDS = frozenset({"const", "enum", "pattern", "minLength", "maxLength"})
# Anchors, look-around, word boundaries and backreferences, which the grammar library does not
# support in a pattern; also matches named groups.
UNSUPPORTED_REGEX = re.compile(r"\(\?[=!<]|\\[1-9bB]|(?<![\[\\])\^|(?<!\\)\$")


# (tag, tags that may follow it, whether the tag is consumed with the value)
EndTag = tuple[str, tuple[str, ...], bool]


def stream_value(
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
        for tag, followers, is_read in line_tags if has_newline else end_tags:
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
    longest = max(map(len, followers), default=0)
    follower = text[after.start() : after.start() + longest]
    if any(follower.startswith(each) for each in followers):
        return True
    return (has_ended or None) if any(each.startswith(follower) for each in followers) else False


def text_terminal(name: str, next_tags: Sequence[str], any_key: bool) -> str:
    """Returns a Lark terminal for bare text that `stream_value` does not end.

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


def constrained_text(schema: Mapping[str, Any], is_nullable: bool) -> str:
    """Returns a Lark expression for a string parameter's bare text.

    Unlike `text_terminal`, it excludes no tags: the grammar library cannot exclude any from text of
    limited length.

    Args:
        schema: JSON schema of the string. `TEXT_KEYWORDS` are enforced, except for large length
            bounds and patterns that the grammar library does not support.
    """
    text = " & ".join([_any_text(schema), *_pattern(schema)])
    return f"({text})" + (' | "null"' if is_nullable else "")


def text_choices(schema: Mapping[str, Any], is_nullable: bool) -> str | None:
    """Returns a Lark expression for the texts of `enum` or `const`; None without them."""
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(choices, list):
        return None
    texts = [choice if isinstance(choice, str) else json.dumps(choice) for choice in choices]
    return " | ".join([*map(literal, texts), *(['"null"'] if is_nullable else [])])


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
