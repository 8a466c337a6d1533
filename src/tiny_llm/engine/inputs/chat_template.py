"""Chat template rendering: messages and tools to prompt text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UserError
from ..tool_calls.format import ToolCallFormat
from ..tool_calls.registry import AUTO, find_format
from .chat_messages import check_unicode, normalize_messages, normalize_tools

# Variables set by `render_chat`'s arguments or by the tokenizer.
RESERVED_VARIABLES = {
    *("add_generation_prompt", "chat_template", "conversation", "messages", "tokenize", "tools"),
}

TOOLS_SECTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def render_chat(
    tokenizer: Any,
    messages: Sequence[Any],
    tools: Any = None,
    variables: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
) -> str:
    """Renders a conversation with the model's chat template.

    For templates without tool support, tools and tool calls become message text in Qwen3's format.

    Args:
        variables: other template variables, such as `enable_thinking`.
        add_generation_prompt: whether to open the assistant's turn at the end.

    Raises:
        UserError: invalid messages, tools or variables; no chat template; the template failed.
    """
    if not getattr(tokenizer, "has_chat_template", False):
        raise UserError("the model has no chat template; use a text or token-id prompt instead.")
    if not messages:
        raise UserError("messages must not be empty; pass at least one message with content.")
    template = str(tokenizer.chat_template)
    tool_call_format = find_format(AUTO, template)
    normalized = [
        _with_valid_call_ids(message, tool_call_format) for message in normalize_messages(messages)
    ]
    functions = normalize_tools(tools)
    for name in (variables or {}).keys() & RESERVED_VARIABLES:
        raise UserError(f"chat_template_kwargs must not contain '{name}'.")
    try:
        if functions and "tools" not in template:
            normalized, functions = _inline_tools(normalized, functions), None
        elif "tool_calls" not in template:
            normalized = _inline_tools(normalized, [])
        text: str = tokenizer.apply_chat_template(
            normalized,
            tools=functions,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **(variables or {}),
        )
    except Exception as error:  # templates are programs and can raise anything
        reason = str(error).rstrip(".") or type(error).__name__
        raise UserError(f"the chat template failed: {reason}.") from error
    check_unicode("the rendered chat", text)
    return text


def _with_valid_call_ids(
    message: dict[str, Any], tool_call_format: ToolCallFormat
) -> dict[str, Any]:
    """Converts tool call ids, in calls and results, to ids that the chat template accepts."""
    converted = dict(message)
    if message.get("tool_calls"):
        converted["tool_calls"] = [
            {**call, "id": tool_call_format.valid_call_id(call["id"])}
            if isinstance(call.get("id"), str)
            else call
            for call in message["tool_calls"]
        ]
    if isinstance(message.get("tool_call_id"), str):
        converted["tool_call_id"] = tool_call_format.valid_call_id(message["tool_call_id"])
    return converted


def _inline_tools(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Moves tool definitions, calls and results into message text."""
    flat = [_inline_tool_calls(message) for message in messages]
    if not tools:
        return flat
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    section = TOOLS_SECTION.format(tools=listed)
    if flat and flat[0]["role"] == "system":
        return [{**flat[0], "content": f"{flat[0]['content']}\n\n{section}"}, *flat[1:]]
    return [{"role": "system", "content": section}, *flat]


def _inline_tool_calls(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [
        f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
        for call in message.get("tool_calls") or ()
    ]
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**others, "content": "\n".join([*filter(None, [content]), *calls])}
