"""Routing key: a request's text for prefix-aware routing.

A prefix-aware router compares text, independently of the protocol. The key contains the parts of a
prompt in chat template order: system message, then the turns. It need not equal the prompt: two
keys only have to share a prefix if their prompts do.
"""

import json
from typing import Any

# Prompt fields of all protocols, in prompt order.
FIELDS = ("system", "instructions", "messages", "input", "prompt")


def routing_key(body: bytes) -> str:
    """Returns a request's routing key: the texts of `FIELDS`, joined by newlines.

    Fields without text are omitted. The key of invalid JSON, which the replica rejects, is empty.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(fields, dict):
        return ""
    # [task 5.7.1 key]
    return "\n".join(text for field in FIELDS if (text := _text(fields.get(field))))
    # [/task 5.7.1 key]


def _text(value: Any) -> str:
    """Joins all texts and token ids of a value with spaces, in order.

    Args:
        value: a string, an integer, a list of values, or an object with "text" or "content" (at
            most one of these occurs); anything else has no text. May be nested deeper than Python's
            recursion limit.
    """
    # [task 5.7.1 text]
    pending, texts = [value], []
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, int) and not isinstance(part, bool):
            texts.append(str(part))
        elif isinstance(part, list):
            pending.extend(reversed(part))
        elif isinstance(part, dict):
            pending.extend(part[name] for name in ("text", "content") if name in part)
    return " ".join(texts)
    # [/task 5.7.1 text]
