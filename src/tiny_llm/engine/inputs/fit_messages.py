"""Adaptation of conversations to what a chat template accepts.

Clients send sequences that some templates reject, such as a system message between turns. Messages
are then merged, split or given another role, but stay in their place. Later turns do not change the
result for earlier ones, so that the prefix cache still applies.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from .template_traits import TemplateTraits

Message = dict[str, Any]

SEPARATOR = "\n\n"  # between merged texts


def fit_messages(messages: Sequence[Message], traits: TemplateTraits) -> Sequence[Message]:
    """Adapts normalized messages to a template; returns accepted messages unchanged."""
    fitted: list[Message] = []
    is_leading = True  # whether only system messages precede
    for message in _split_calls(messages, traits):
        if message["role"] == "system":
            is_accepted = traits.system if is_leading else traits.late_system
            message = message if is_accepted else {**message, "role": "user"}
        else:
            is_leading = False
        is_empty = not (message["content"] or "tool_calls" in message)
        if is_empty and message["role"] == "assistant" and not traits.empty_assistant:
            message = {**message, "content": " "}
        if fitted and _must_merge(fitted[-1]["role"], message["role"], is_leading, traits):
            fitted[-1] = _merge(fitted[-1], message)
        else:
            fitted.append(message)
    return [_in_accepted_form(message, traits) for message in _with_user(fitted, traits)]


def _must_merge(last: str, role: str, is_leading: bool, traits: TemplateTraits) -> bool:
    match (last, role):
        case ("system", "system"):
            return is_leading and not traits.second_system
        case ("user", "user"):
            return not traits.consecutive_users
        case ("assistant", "assistant"):
            return not traits.consecutive_assistants
        case ("tool", "user"):
            return not traits.user_after_tool
    return False


def _merge(first: Message, second: Message) -> Message:
    merged = {**second, **first}
    for name in ("content", "reasoning_content"):
        texts = [message[name] for message in (first, second) if message.get(name)]
        if texts:
            merged[name] = SEPARATOR.join(texts)
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    return {**merged, "tool_calls": calls} if calls else merged


def _with_user(messages: list[Message], traits: TemplateTraits) -> list[Message]:
    """Adds an empty user message where a template requires one.

    In a conversation of system messages only, the last one becomes a user message instead.
    """
    roles = [message["role"] for message in messages]
    start = next((i for i, role in enumerate(roles) if role != "system"), len(roles))
    requires_user = not traits.no_user and "user" not in roles
    if start == len(roles):
        return [*messages[:-1], {**messages[-1], "role": "user"}] if requires_user else messages
    if requires_user or (roles[start] == "assistant" and not traits.assistant_first):
        return [*messages[:start], {"role": "user", "content": ""}, *messages[start:]]
    return messages


def _split_calls(messages: Sequence[Message], traits: TemplateTraits) -> Iterator[Message]:
    """Yields messages, with text beside calls and parallel calls split if required."""
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        calls = message.get("tool_calls", ())
        # If the template does not accept the split either, it drops the text.
        can_split = not traits.text_with_calls and traits.consecutive_assistants
        if calls and message["content"] and can_split:
            yield {name: value for name, value in message.items() if name != "tool_calls"}
            message = _calls_message(calls)
        if len(calls) < 2 or traits.parallel_calls:
            yield message
            continue
        results = []
        while index < len(messages) and messages[index]["role"] == "tool":
            results.append(messages[index])
            index += 1
        for number, call in enumerate(calls):
            yield _calls_message([call]) if number else {**message, "tool_calls": [call]}
            yield from (each for each in results if _answers(each, call))
        yield from (each for each in results if not any(_answers(each, call) for call in calls))


def _answers(result: Message, call: Any) -> bool:
    return bool(result.get("tool_call_id") == call.get("id"))


def _calls_message(calls: Sequence[Any]) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def _in_accepted_form(message: Message, traits: TemplateTraits) -> Message:
    calls, reasoning = message.get("tool_calls"), message.get("reasoning_content")
    if calls and reasoning and message["content"] and not traits.reasoning_and_text:
        text = SEPARATOR.join((reasoning, message["content"]))
        message = {**message, "content": text, "reasoning_content": None}
    if calls and traits.text_arguments:
        message = {**message, "tool_calls": [_with_text_arguments(call) for call in calls]}
    if calls and traits.null_content and not message["content"]:
        message = {**message, "content": None}
    return message


def _with_text_arguments(call: Message) -> Message:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
