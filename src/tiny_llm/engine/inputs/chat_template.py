"""Chat messages and tools, validated, normalized and rendered to prompt text.

Templates differ in the inputs they accept, so text parts are joined into a string, and a tool
call's JSON arguments (OpenAI's format) are parsed into an object. Content that a template might
silently drop is rejected, and conversations are fitted to the template (`fit_messages.py`).
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...errors import UserError, short_repr
from ..tool_calls.format import ToolCallFormat
from ..tool_calls.harmony import EFFORTS as HARMONY_EFFORTS
from ..tool_calls.harmony import HarmonyFormat
from ..tool_calls.registry import AUTO, find_format
from .fit_messages import EFFORTS, PROBE_TOOL, TemplateTraits, fit_messages, probe_template
from .limits import JsonLimits, check_unicode

# Template variables that `render_chat` or the tokenizer sets; callers may not set them.
RESERVED_VARIABLES = {
    *("add_generation_prompt", "chat_template", "conversation", "messages", "tokenize", "tools"),
}

EFFORT_VARIABLE = "reasoning_effort"

# Traits by template and whether there are tools.
_TRAITS: dict[tuple[str, bool], TemplateTraits] = {}

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


def check_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Checks a Python caller's messages; joins text parts. A server's schemas check requests."""
    return [_check_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def normalize_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Normalizes checked messages for chat templates, without modifying the originals."""
    limits = JsonLimits("the JSON of the tool calls' arguments")
    return [
        _normalize_message(f"messages[{index}]", message, limits)
        for index, message in enumerate(messages)
    ]


def normalize_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Normalizes tools for chat templates; returns None if there are none."""
    if not tools:
        return None
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise UserError(f"tools must be a list of functions, got {short_repr(tools)}.")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise UserError(
                f'tools[{index}] must be {{"type": "function", "function": {{"name": …, '
                f'"parameters": …}}}}, got {short_repr(tool)}.'
            )
        if function["name"] in names:
            raise UserError(
                f"tools must have unique names, got {short_repr(function['name'])} several times; "
                "rename or remove one."
            )
        names.add(function["name"])
    return [dict(tool) for tool in tools]


def _check_message(path: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise UserError(
            f'{path} must be {{"role": …, "content": …}} with a string role, got '
            f"{short_repr(message)}."
        )
    content, reasoning = message.get("content"), message.get("reasoning_content")
    if isinstance(content, list | tuple):
        content = _join_text_parts(f"{path}.content", content)
    if not isinstance(content, str) and not (content is None and message["role"] == "assistant"):
        raise UserError(
            f"{path}.content must be a string or a list of text parts, got {short_repr(content)}; "
            "only an assistant message may omit it."
        )
    if reasoning is not None and not isinstance(reasoning, str):
        raise UserError(f"{path}.reasoning_content must be a string, got {short_repr(reasoning)}.")
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list | tuple):
        raise UserError(f"{path}.tool_calls must be a list, got {short_repr(calls)}.")
    for index, call in enumerate(calls or ()):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise UserError(
                f'{path}.tool_calls[{index}] must be {{"function": {{"name": …, "arguments": …}}}},'
                f" got {short_repr(call)}."
            )
    return {**message, "content": content}


def _normalize_message(path: str, message: Mapping[str, Any], limits: JsonLimits) -> dict[str, Any]:
    for text in (message.get("content"), message.get("reasoning_content")):
        check_unicode(path, text or "")
    role = "system" if message["role"] == "developer" else message["role"]  # OpenAI's newer name
    normalized = {**message, "role": role, "content": message.get("content") or ""}
    calls = normalized.pop("tool_calls", None)
    if calls:  # some templates count the calls wherever there is a list
        normalized["tool_calls"] = [_decode_call(call, limits) for call in calls]
    return normalized


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


def _decode_call(call: Mapping[str, Any], limits: JsonLimits) -> dict[str, Any]:
    function = call["function"]
    arguments = _decode_arguments(function.get("arguments"), limits)
    return {**call, "function": {**function, "arguments": arguments}}


def _decode_arguments(arguments: Any, limits: JsonLimits) -> Any:
    """Parses tool call arguments into the object that templates require.

    A model's malformed call stays in the history, so blank text and null become {}, and other text
    or values become {"arguments": …}, as in the Messages API's answers.
    """
    if isinstance(arguments, str):
        limits.check(arguments)
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments) if arguments.strip() else None
    if arguments is None:
        return {}
    return arguments if isinstance(arguments, Mapping) else {"arguments": arguments}


def render_chat(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    tools: Any = None,
    variables: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
) -> str:
    """Renders a conversation with the model's chat template.

    For templates without tool support, tools and tool calls become message text in Qwen3's format.

    Args:
        messages: checked by `check_messages` or a request's schema.
        variables: other template variables, such as `enable_thinking`.
        add_generation_prompt: whether to end with the header of an assistant message.

    Raises:
        UserError: invalid text, tools or variables; no chat template; the template failed.
    """
    if not getattr(tokenizer, "has_chat_template", False):
        raise UserError("the model has no chat template; use a text or token-id prompt instead.")
    if not messages:
        raise UserError("messages must not be empty; pass at least one message with content.")
    template = str(tokenizer.chat_template)
    normalized = normalize_messages(messages)
    if any("tool_calls" in message or "tool_call_id" in message for message in normalized):
        tool_call_format = find_format(AUTO, template)
        normalized = [_with_valid_call_ids(message, tool_call_format) for message in normalized]
    functions = normalize_tools(tools)
    if functions is not None and isinstance(find_format(AUTO, template), HarmonyFormat):
        functions = [_with_description(tool) for tool in functions]
    for name in (variables or {}).keys() & RESERVED_VARIABLES:
        raise UserError(f"chat_template_kwargs must not contain '{name}'.")
    traits = template_traits(tokenizer, functions is not None)
    given = dict(variables or {})
    effort = traits.closest_effort(given.pop(EFFORT_VARIABLE, None))
    if effort is not None:
        given[EFFORT_VARIABLE] = effort
    try:
        normalized, functions = _inline_unsupported(template, normalized, functions)
        text: str = tokenizer.apply_chat_template(
            fit_messages(normalized, traits),
            tools=functions,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **given,
        )
    except Exception as error:  # templates are programs and can raise any exception
        reason = str(error).rstrip(".") or type(error).__name__
        raise UserError(f"the chat template failed: {reason}.") from error
    return text


def template_traits(tokenizer: Any, has_tools: bool) -> TemplateTraits:
    """Returns what a tokenizer's chat template accepts, with or without tools; probed once."""
    template = str(tokenizer.chat_template)
    tools = [PROBE_TOOL] if has_tools and "tools" in template else None

    def render(messages: list[dict[str, Any]], **variables: Any) -> str:
        messages, _ = _inline_unsupported(template, messages, tools)
        text: str = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True, **variables
        )
        return text

    key = template, tools is not None
    if key not in _TRAITS:
        efforts = EFFORTS if EFFORT_VARIABLE in template else ()
        is_harmony = isinstance(find_format(AUTO, template), HarmonyFormat)
        _TRAITS[key] = probe_template(render, HARMONY_EFFORTS if is_harmony else efforts)
    return _TRAITS[key]


def _with_description(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the description that gpt-oss's template requires, if it is missing or null."""
    function = tool["function"]
    return {**tool, "function": {**function, "description": function.get("description") or ""}}


def _with_valid_call_ids(
    message: dict[str, Any], tool_call_format: ToolCallFormat
) -> dict[str, Any]:
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


def _inline_unsupported(
    template: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    if tools and "tools" not in template:
        return _inline_tools(messages, tools), None
    if "tool_calls" not in template:
        messages = _inline_tools(messages, [])
    return messages, tools


def _inline_tools(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
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
