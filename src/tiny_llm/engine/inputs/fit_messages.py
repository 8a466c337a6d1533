"""Adaptation of conversations to a chat template, probed for what it accepts.

Clients send sequences that some templates reject, such as a system message between turns. Messages
are then merged, split or given another role, but stay in their place. Later turns do not change the
result for earlier ones, so that the prefix cache still applies.

Templates raise exceptions for sequences that they were not written for, or silently drop messages.
Each template is therefore rendered once with short conversations whose texts are unique markers.
A template accepts a sequence if all markers are in the prompt, in order.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

Message = dict[str, Any]

SEPARATOR = "\n\n"  # between merged texts

# Levels of `reasoning_effort`, in ascending order.
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "A text."}},
        },
    },
}

# Conversations that a template with a trait must accept: s system, u user, a assistant, e empty
# assistant message, c tool call, m text and tool call, n reasoning, text and tool call, p two tool
# calls, t tool result.
PROBES = {
    "system": ("su", "suau", "suct"),
    "second_system": ("ssu",),
    "late_system": ("us", "usau", "uasu", "ucts"),
    "consecutive_users": ("uu", "uuau", "uauu"),
    "consecutive_assistants": ("uaau",),
    "user_after_tool": ("uctu", "uctuau"),
    "assistant_first": ("au",),
    "no_user": ("s",),
    "empty_assistant": ("ueu",),
    "text_with_calls": ("umt",),  # gpt-oss's template drops the text after an answer
    "reasoning_and_text": ("unt",),
    "parallel_calls": ("uptt",),
}
CALL_PROBES = ("text_with_calls", "reasoning_and_text", "parallel_calls")
# Must be rendered differently: with tools, Llama's template renders the first message after a
# system message as the user's, whatever its role.
DISTINCT = {"ssu": "suu", "au": "uu"}


@dataclass(frozen=True)
class TemplateTraits:
    """What a chat template accepts; see `PROBES`.

    Attributes:
        null_content: whether a message with tool calls and no text must have content None, not "".
        text_arguments: whether a tool call's arguments must be JSON text, not an object.
        efforts: accepted values of `reasoning_effort`; empty if the template does not read it.
    """

    system: bool = True
    second_system: bool = True
    late_system: bool = True
    consecutive_users: bool = True
    consecutive_assistants: bool = True
    user_after_tool: bool = True
    assistant_first: bool = True
    no_user: bool = True
    empty_assistant: bool = True
    text_with_calls: bool = True
    reasoning_and_text: bool = True  # beside calls
    parallel_calls: bool = True
    null_content: bool = False
    text_arguments: bool = False
    efforts: tuple[str, ...] = ()

    def closest_effort(self, effort: str | None) -> str | None:
        """Accepted effort closest to the requested one, the higher of two; None if there is none.

        Efforts other than those in `EFFORTS` are returned unchanged.
        """
        if effort not in EFFORTS or not self.efforts:
            return effort if self.efforts else None
        wanted = EFFORTS.index(effort)
        highest_first = reversed(self.efforts)
        return min(highest_first, key=lambda each: abs(EFFORTS.index(each) - wanted))


def probe_template(render: Callable[..., str], efforts: Sequence[str]) -> TemplateTraits:
    """Renders the probes; returns all traits if the template rejects a single user message.

    `efforts` are the values of `reasoning_effort` to try; empty if the template does not read it.
    """
    probe = _Probe(render)
    if not probe.accepts("u"):
        return TemplateTraits()
    forms = product((False, True), repeat=2)
    form = next((form for form in forms if _Probe(render, *form).accepts("uct")), None)
    if form is not None:
        probe = _Probe(render, *form)
    accepted = {
        name: all(probe.accepts(each) for each in probes if form is not None or "c" not in each)
        for name, probes in PROBES.items()
        if form is not None or name not in CALL_PROBES
    }
    accepted_efforts = (each for each in efforts if probe.accepts("u", each))
    return TemplateTraits(
        **accepted,
        text_arguments=probe.text_arguments,
        null_content=probe.null_content,
        efforts=tuple(accepted_efforts),
    )


@dataclass(frozen=True)
class _Probe:
    """Renders probes with tool calls in a given form; see `TemplateTraits`."""

    render: Callable[..., str]
    text_arguments: bool = False
    null_content: bool = False

    def accepts(self, probe: str, effort: str | None = None) -> bool:
        """Whether the prompt contains all markers of a probe, in order."""
        messages, markers = self._conversation(probe)
        try:
            text = self.render(messages, **({} if effort is None else {"reasoning_effort": effort}))
            if probe in DISTINCT and text == self.render(self._conversation(DISTINCT[probe])[0]):
                return False
        except Exception:  # templates are programs and can raise any exception
            return False
        position = 0
        for marker in markers:
            position = text.find(marker, position)
            if position < 0:
                return False
        return True

    def _conversation(self, probe: str) -> tuple[list[dict[str, Any]], list[str]]:
        messages: list[dict[str, Any]] = []
        markers: list[str] = []
        call_ids: list[str] = []

        def marker() -> str:
            markers.append(f"marker{len(markers)}.")
            return markers[-1]

        for kind in probe:
            role = {"s": "system", "u": "user", "t": "tool"}.get(kind, "assistant")
            no_text = None if self.null_content and kind in "cp" else ""
            content = no_text if kind in "ecp" else marker()
            message: dict[str, Any] = {"role": role, "content": content}
            if kind == "n":
                message["reasoning_content"] = "thought"
            calls = []
            for _ in range({"c": 1, "m": 1, "n": 1, "p": 2}.get(kind, 0)):
                call_ids.append(f"probe{len(markers):04}")
                arguments: Any = {"text": marker()}
                arguments = json.dumps(arguments) if self.text_arguments else arguments
                function = {"name": "probe", "arguments": arguments}
                calls.append({"id": call_ids[-1], "type": "function", "function": function})
            if calls:
                message["tool_calls"] = calls
            if kind == "t":
                message["tool_call_id"] = call_ids.pop(0)
            messages.append(message)
        return messages, markers


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
