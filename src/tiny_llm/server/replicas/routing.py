"""Routing key: a request's text for prefix-aware routing.

A prefix-aware router compares text, independently of the protocol. The key contains the parts of a
prompt in chat template order: system message, then the turns. It need not equal the prompt: two
keys only have to share a prefix where their prompts do.
"""

import json
from typing import Any

# Prompt fields in prompt order: Messages, Responses, chat completions, completions.
FIELDS = ("system", "instructions", "messages", "input", "prompt")


def routing_key(body: bytes) -> str:
    """Returns a request's routing key; empty without a prompt.

    Args:
        body: raw body. Invalid JSON has an empty key; the replica rejects it.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(fields, dict):
        return ""
    return "\n".join(text for field in FIELDS if (text := _text(fields.get(field))))


def _text(value: Any) -> str:
    """Joins all texts and token ids of a value, in order."""
    pending, texts = [value], []
    while pending:  # iterative: a body can be nested deeper than Python's recursion limit
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
