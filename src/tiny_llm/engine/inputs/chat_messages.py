"""Chat messages and tools, validated and normalized for chat templates.

Templates differ in the inputs they accept, so text parts are joined into a string, and a tool
call's JSON arguments (OpenAI's format) are parsed into an object. Anything that a template might
silently drop is rejected.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UserError, short_repr
from .json_limits import JsonLimits


def normalize_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Normalizes messages for chat templates, without modifying the originals.

    Raises:
        UserError: a message has no role, its content is neither a string nor text parts, or tool
            call arguments exceed a limit in `json_limits.py`.
    """
    limits = JsonLimits("the JSON of the tool calls' arguments")
    return [
        _normalize_message(f"messages[{index}]", message, limits)
        for index, message in enumerate(messages)
    ]


def normalize_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Normalizes tools for chat templates; returns None if there are none.

    Raises:
        UserError: a tool is not `{"type": "function", "function": {"name": …}}`.
    """
    if not tools:
        return None
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise UserError(f"tools must be a list of functions, got {short_repr(tools)}.")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise UserError(
                f'tools[{index}] must be {{"type": "function", "function": {{"name": …, '
                f'"parameters": …}}}}, got {short_repr(tool)}.'
            )
    return [dict(tool) for tool in tools]


def _normalize_message(path: str, message: Any, limits: JsonLimits) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise UserError(
            f'{path} must be {{"role": …, "content": …}} with a string role, got '
            f"{short_repr(message)}."
        )
    message = dict(message)
    content = message.get("content")
    if isinstance(content, list | tuple):
        message["content"] = content = _join_text_parts(f"{path}.content", content)
    if not isinstance(content, str) and not (content is None and message["role"] == "assistant"):
        raise UserError(
            f"{path}.content must be a string or a list of text parts, got {short_repr(content)}; "
            "only an assistant message may omit it."
        )
    reasoning = message.get("reasoning_content")
    if reasoning is not None and not isinstance(reasoning, str):
        raise UserError(f"{path}.reasoning_content must be a string, got {short_repr(reasoning)}.")
    for text in (content, reasoning):
        check_unicode(path, text or "")
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list | tuple):
            raise UserError(f"{path}.tool_calls must be a list, got {short_repr(calls)}.")
        message["tool_calls"] = [
            _normalize_tool_call(f"{path}.tool_calls[{index}]", call, limits)
            for index, call in enumerate(calls)
        ]
    return message


def _join_text_parts(path: str, parts: Sequence[Any]) -> str:
    """Joins content parts with newlines, as vLLM does."""
    texts = []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            given = f"type '{kind}'" if isinstance(kind, str) else short_repr(part)
            raise UserError(
                f'{path}[{index}] must be {{"type": "text", "text": …}}, got {given}; the model '
                "accepts text only."
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _normalize_tool_call(path: str, call: Any, limits: JsonLimits) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UserError(
            f'{path} must be {{"function": {{"name": …, "arguments": …}}}}, got {short_repr(call)}.'
        )
    arguments = _decode_arguments(function.get("arguments"), limits)
    return {**call, "function": {**function, "arguments": arguments}}


def _decode_arguments(arguments: Any, limits: JsonLimits) -> Any:
    """Parses a tool call's arguments; missing or blank ones become an empty object.

    Invalid JSON stays a string: it may come from a completion cut off at `max_tokens`.
    """
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if isinstance(arguments, str):
        limits.check(arguments)
        try:
            return json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
    return arguments


def check_unicode(what: str, text: str) -> None:
    """Rejects unpaired surrogates, which truncated JSON can contain.

    Args:
        what: subject of the error message, for example "the prompt".
        text: text to check.

    Raises:
        UserError: the text is not valid Unicode.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        surrogate = text[error.start]
        raise UserError(
            f"{what} contains {surrogate!r}, an unpaired surrogate; text must be valid Unicode."
        ) from error
