"""Chat template rendering: messages and tools to prompt text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UserError
from .chat_messages import check_unicode, normalize_messages, normalize_tools

# Variables with an argument of their own here, or handled by the tokenizer.
RESERVED_VARIABLES = {
    "add_generation_prompt",
    "chat_template",
    "conversation",
    "messages",
    "tokenize",
    "tools",
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

    Templates without tool support get tools and tool calls as message text, in Qwen3's format.

    Args:
        tokenizer: the model's tokenizer.
        messages: see `normalize_messages`.
        tools: see `normalize_tools`.
        variables: other template variables, such as `enable_thinking`.
        add_generation_prompt: whether to open the assistant's turn at the end.

    Raises:
        UserError: invalid messages, tools or variables; no chat template; the template failed.
    """
    if not getattr(tokenizer, "has_chat_template", False):
        raise UserError("the model has no chat template; use a text or token-id prompt instead.")
    normalized = normalize_messages(messages)
    functions = normalize_tools(tools)
    for name in (variables or {}).keys() & RESERVED_VARIABLES:
        raise UserError(f"chat_template_kwargs must not contain '{name}'.")
    template = str(tokenizer.chat_template)
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
