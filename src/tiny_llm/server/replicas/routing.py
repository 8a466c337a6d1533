"""Which text of a request says where its prefix may already be cached.

A router that keeps common prefixes together compares texts; it does not know the protocols. The
text here has the parts of a prompt in the order in which the chat template puts them: what the
system says, then the turns. It need not be the prompt itself. It must only agree with another
request's text for as long as their prompts agree.
"""

import json
from typing import Any

# Fields with a prompt, in the order of the prompt: Messages, Responses, chat, completions.
FIELDS = ("system", "instructions", "messages", "input", "prompt")


def routing_key(body: bytes) -> str:
    """The text of a request's body by which it is routed; empty where there is none.

    Args:
        body: as it came. What is not JSON has no text: a replica refuses it with the reason.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(fields, dict):
        return ""
    return "\n".join(text for field in FIELDS if (text := _text(fields.get(field))))


def _text(value: Any) -> str:
    """All texts and token ids of a value, in their order."""
    pending, texts = [value], []
    while pending:  # a loop, because a body can be nested deeper than Python's stack
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
