"""The messages of a chat as callers give them, checked and in the form that chat templates read.

Three things are made equal here, because templates differ in what they take: text parts become one
text, the arguments of a tool call become an object (OpenAI's protocol has them as JSON in a text),
and what a template would drop silently is refused.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UserError, short_repr


def normalize_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """The messages as chat templates read them.

    Raises:
        UserError: a message has no role, or content that is neither text nor text parts.
    """
    return [
        _normalize_message(f"message {index} of the chat", m) for index, m in enumerate(messages)
    ]


def normalize_tools(tools: Any) -> list[dict[str, Any]] | None:
    """The tools as chat templates read them; None for none.

    Raises:
        UserError: a tool is not `{"type": "function", "function": {"name": …}}`.
    """
    if not tools:
        return None
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise UserError(f"tools is {short_repr(tools)}; it must be a list of functions.")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise UserError(
                f'tool {index} is {short_repr(tool)}; give {{"type": "function", "function": '
                '{"name": …, "parameters": …}}.'
            )
    return [dict(tool) for tool in tools]


def _normalize_message(what: str, message: Any) -> dict[str, Any]:
    """Refuses a message without role or text, which many templates would drop silently."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise UserError(
            f'{what} is {short_repr(message)}; give {{"role": …, "content": …}}, the role a text.'
        )
    message = dict(message)
    content = message.get("content")
    if isinstance(content, list | tuple):
        message["content"] = content = _join_text_parts(what, content)
    if not isinstance(content, str) and not (content is None and message["role"] == "assistant"):
        raise UserError(
            f"{what} has the content {short_repr(content)}; give a text or text parts, which only "
            "an assistant's message can do without."
        )
    reasoning = message.get("reasoning_content")
    if reasoning is not None and not isinstance(reasoning, str):
        raise UserError(f"{what} has the reasoning_content {short_repr(reasoning)}; give a text.")
    for text in (content, reasoning):
        check_unicode(what, text or "")
    if isinstance(message.get("tool_calls"), list | tuple):
        message["tool_calls"] = [_normalize_tool_call(what, call) for call in message["tool_calls"]]
    return message


def _join_text_parts(what: str, parts: Sequence[Any]) -> str:
    """The text of content parts, a line each, as in vLLM."""
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            given = f"of type '{kind}'" if isinstance(kind, str) else short_repr(part)
            raise UserError(
                f"{what} has a content part {given}; the model reads text only, so parts must be "
                '{"type": "text", "text": …}.'
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _normalize_tool_call(what: str, call: Any) -> Any:
    """A tool call whose arguments are an object."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UserError(
            f"{what} has the tool call {short_repr(call)}; give "
            '{"function": {"name": …, "arguments": …}}.'
        )
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{what} has a call of '{function['name']}' with the arguments "
                f"{short_repr(arguments)}; they must be JSON."
            ) from error
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def check_unicode(what: str, text: str) -> None:
    """Refuses half of a surrogate pair, which JSON that was cut can contain."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise UserError(f"{what} has {half!r}, half of a character; give whole ones.") from error
