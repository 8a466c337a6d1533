"""Lark expressions for literals, special tokens and text up to a tag.

If the vocabulary has no special token for a tag, the model generates the tag as ordinary text, and
a *lazy* (shortest-match) rule finds it.

Source: llguidance's grammar documentation.
"""

import json
import re
from collections.abc import Mapping

# Lark expressions for a vocabulary's special tokens, by token text.
SpecialTokens = Mapping[str, str]

ANY_TEXT = r"/(.|\n)*/"


def literal(text: str) -> str:
    """Quotes a string for Lark, whose string literals use JSON's syntax."""
    return json.dumps(text, ensure_ascii=False)


def tag(text: str, special_tokens: SpecialTokens) -> str:
    """Returns the Lark expression for a tag: its special token, else its text."""
    return special_tokens.get(text) or literal(text)


def text_until(rule: str, end: str, special_tokens: SpecialTokens) -> str:
    """Returns a Lark rule named `rule` for text without `end`, followed by `end`."""
    if end in special_tokens:
        return f"{rule}: {ANY_TEXT} {special_tokens[end]}\n"
    return f"{rule}[lazy]: {ANY_TEXT} {literal(end)}\n"


def text_without(rule: str, end: str, special_tokens: SpecialTokens) -> str:
    """Returns a Lark rule named `rule` for text without `end`."""
    if end in special_tokens:
        return f"{rule}: {ANY_TEXT}\n"
    escaped = re.sub(r"[\\/.*+?()\[\]{}|^$]", r"\\\g<0>", end)
    contains = f"(?s:.*){escaped}(?s:.*)"
    return f"{rule}: {rule.upper()}_TEXT\n{rule.upper()}_TEXT: /(?s:.*)/ & ~/{contains}/\n"
