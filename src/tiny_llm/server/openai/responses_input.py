"""Input items of the Responses API, converted to chat template messages."""

from collections.abc import Iterator, Sequence
from typing import Any

from ..http.errors import bad_request
from ..http.unsupported import replace_media
from ..protocol.base_schema import unknown_fields, value_path
from ..protocol.parsed_output import decode_reasoning

TEXT_PARTS = ("input_text", "output_text", "text")
PART_FIELDS = {"type", "text", "refusal"}
# Fields of input items, by type.
ITEM_FIELDS = {
    kind: {"type", "id", "status", *names}
    for kind, names in {
        "message": ("role", "content"),
        "function_call": ("call_id", "name", "arguments"),
        "function_call_output": ("call_id", "output"),
        "reasoning": ("content", "encrypted_content"),
        "item_reference": (),
    }.items()
}


def ignored_item_fields(items: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields unknown fields and item types; see `RequestBody.ignored_values`."""
    for item in items:
        kind = item.get("type", "message")
        if not isinstance(kind, str) or kind not in ITEM_FIELDS:
            yield value_path("input[].type", kind)
            continue
        yield from unknown_fields(item, "input[].", ITEM_FIELDS[kind])
        for name in ("content", "output"):
            parts = item.get(name)
            for part in parts if isinstance(parts, list) else ():
                if isinstance(part, dict):
                    yield from unknown_fields(part, f"input[].{name}[].", PART_FIELDS)


def to_chat_messages(
    given: str | list[dict[str, Any]], instructions: str | None, num_stored: int = 0
) -> list[dict[str, Any]]:
    """Converts the input to messages; drops items of unknown types.

    The first `num_stored` items come from stored responses; indices in errors do not count them.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    reasoning = None
    for number, item in enumerate(given, -num_stored):
        path = f"input[{number}]"
        if item.get("type") == "reasoning":
            reasoning = _join_parts(item.get("content") or [], f"{path}.content")
            reasoning = reasoning or decode_reasoning(item.get("encrypted_content"))
            continue
        message = _to_message(item, path)
        if message is None:
            continue
        if reasoning and message["role"] == "assistant":
            message["reasoning_content"] = reasoning
        reasoning = None
        same_turn = bool(messages) and messages[-1]["role"] == "assistant"
        if same_turn and "tool_calls" in message and "reasoning_content" not in message:
            # Chat templates expect a turn's text and calls in one message.
            messages[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
        else:
            messages.append(message)
    if not any(message["role"] != "system" for message in messages):
        raise bad_request("input must contain at least one message.", "input")
    return messages


def _to_message(item: dict[str, Any], path: str) -> dict[str, Any] | None:
    """Converts an item to a message; returns None if its type is unknown."""
    match item.get("type", "message"):
        case "message":
            role = item.get("role")
            if role not in ("user", "assistant", "system", "developer"):
                raise bad_request(
                    f"{path}.role must be user, assistant, system or developer.", f"{path}.role"
                )
            content = _join_parts(item.get("content"), f"{path}.content")
            return {"role": "system" if role == "developer" else role, "content": content}
        case "function_call":
            function = {name: _string(item, name, path) for name in ("name", "arguments")}
            call = {"id": _string(item, "call_id", path), "type": "function", "function": function}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        case "function_call_output":
            output = replace_media(item.get("output"))
            text = _join_parts(output, f"{path}.output") if output is not None else ""
            call_id = _string(item, "call_id", path)
            return {"role": "tool", "tool_call_id": call_id, "content": text}
    return None


def _string(item: dict[str, Any], name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{path}.{name} must be a string.", f"{path}.{name}")
    return value


def _join_parts(content: Any, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{path} must be a string or a list of content parts.", path)
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in (*TEXT_PARTS, "reasoning_text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
        else:
            raise bad_request(
                f"{path}[{number}] must be a text part; the model accepts text only.", path
            )
    return "\n".join(texts)
