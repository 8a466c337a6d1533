"""The input of a response: items of several types, as the messages that chat templates read."""

import logging
from base64 import b64decode, b64encode
from typing import Any

from ..http.errors import bad_request
from ..http.unsupported import STATELESS

log = logging.getLogger("tiny_llm.server")

TEXT_PARTS = ("input_text", "output_text", "text")


def to_chat_messages(
    given: str | list[dict[str, Any]], instructions: str | None
) -> list[dict[str, Any]]:
    """The conversation. Items of unknown types are left out, with a warning.

    Args:
        given: the user's text, or items.
        instructions: what comes before them; None for nothing.

    Raises:
        ApiError: an item is not as its type has it, or there is none.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    thought = None
    for number, item in enumerate(given):
        place = f"input[{number}]"
        if item.get("type") == "reasoning":
            thought = _texts(item.get("content") or [], f"{place}.content")
            thought = thought or decode_reasoning(item.get("encrypted_content"))
            continue
        message = _message(item, place)
        if message is None:
            log.warning("%s of type %.40r is left out", place, item.get("type"))
            continue
        if thought and message["role"] == "assistant":
            message["reasoning_content"] = thought
        thought = None
        is_of_turn = bool(messages) and messages[-1]["role"] == "assistant"
        if is_of_turn and "tool_calls" in message and "reasoning_content" not in message:
            calls = messages[-1].get("tool_calls", [])  # after a text, or other calls
            messages[-1]["tool_calls"] = [*calls, *message["tool_calls"]]
        else:
            messages.append(message)
    if not any(message["role"] != "system" for message in messages):
        raise bad_request("input has no message; give at least one.", "input")
    return messages


def _message(item: dict[str, Any], place: str) -> dict[str, Any] | None:
    """An item as a message; None for an item of an unknown type."""
    match item.get("type", "message"):
        case "message":
            role = item.get("role")
            if role not in ("user", "assistant", "system", "developer"):
                raise bad_request(
                    f"{place}.role must be user, assistant, system or developer.", f"{place}.role"
                )
            content = _texts(item.get("content"), f"{place}.content")
            return {"role": "system" if role == "developer" else role, "content": content}
        case "function_call":
            function = {name: _text(item, name, place) for name in ("name", "arguments")}
            call = {"id": _text(item, "call_id", place), "type": "function", "function": function}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        case "item_reference":
            raise bad_request(f"{place} refers to an item: {STATELESS}.", place)
        case "function_call_output":
            output = item.get("output")
            text = _texts(output, f"{place}.output") if output is not None else ""
            return {"role": "tool", "content": text}
    return None


def _text(item: dict[str, Any], name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{place}.{name} must be a text.", f"{place}.{name}")
    return value


def _texts(content: Any, place: str) -> str:
    """The text of a content: one text, or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{place} must be a text, or a list of parts.", place)
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in (*TEXT_PARTS, "reasoning_text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
        else:
            raise bad_request(
                f"{place}[{number}] is not a text; this model reads texts only.", place
            )
    return "\n".join(texts)


def encode_reasoning(thought: str) -> str:
    """A thought in the form of `encrypted_content`, which clients send back; it is no secret."""
    return b64encode(thought.encode("utf-8", "replace")).decode()


def decode_reasoning(content: Any) -> str:
    """The thought in an `encrypted_content`; empty if it is none of this server's."""
    try:
        return b64decode(content, validate=True).decode()
    except (TypeError, ValueError):
        return ""
