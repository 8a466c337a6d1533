"""Conversations in short notation, one word per message; tokenizers with other templates.

s system, d developer, u user, a assistant, e empty assistant message, c tool call, m text and tool
call, p two tool calls, t tool result. Texts and arguments are numbered.
"""

from typing import Any

from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.tokenizer.loader import open_tokenizer

KINDS = {"s": "system", "d": "developer", "u": "user", "t": "tool"}


def tokenizer_with(template: str | None) -> Any:
    """The demo's tokenizer with another chat template."""
    tokenizer = open_tokenizer(TARGET_PATH, {"eos_token_id": 1})
    tokenizer.chat_template = template
    return tokenizer


def conversation(words: str) -> list[dict]:
    """Builds messages, e.g. from "s u mt a"; results belong to the calls in order."""
    messages, call_ids = [], []
    for number, kind in enumerate(words.replace(" ", "")):
        message = {"role": KINDS.get(kind, "assistant"), "content": f"{kind}{number}"}
        if kind in "ecp":
            message["content"] = ""
        num_calls = {"c": 1, "m": 1, "p": 2}.get(kind, 0)
        if num_calls:
            ids = [f"call{number:04}{each}" for each in range(num_calls)]
            call_ids += ids
            message["tool_calls"] = [
                {
                    "id": each,
                    "type": "function",
                    "function": {"name": "f", "arguments": {"x": f"x{number}{each[-1]}"}},
                }
                for each in ids
            ]
        if kind == "t":
            message["tool_call_id"] = call_ids.pop(0) if call_ids else "call00000"
        messages.append(message)
    return messages


def describe(messages: list[dict]) -> str:
    """Describes messages, e.g. "system:s0 user:u1 assistant:m2,x20 tool:t3+u4"."""
    words = []
    for message in messages:
        texts = [(message["content"] or "").replace("\n\n", "+")]
        texts += [call["function"]["arguments"]["x"] for call in message.get("tool_calls", ())]
        words.append(f"{message['role']}:{','.join(filter(None, texts))}")
    return " ".join(words)


def markers(messages: list[dict]) -> list[str]:
    """Texts and arguments of a conversation, in order."""
    return [
        text
        for message in messages
        for text in [
            message["content"],
            *(call["function"]["arguments"]["x"] for call in message.get("tool_calls", ())),
        ]
        if text
    ]
