"""Chats with tools, in the format of Qwen3's chat template (Hermes).

The system message lists one to three tools. Each request needs one of them or none; without a
matching tool, the model answers directly or replies that it does not know. Tool results come in
several common formats, and the final answer reports their content.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .arithmetic import arithmetic
from .capitals import capital
from .conversations import small_talk
from .example import Example, Message
from .identity import UNKNOWN_ANSWER, identity, unknown
from .paraphrase import phrase
from .single_facts import fact
from .terms import term
from .tool_invented import invented_kind
from .tool_kinds import KINDS, ToolKind
from .tool_sums import ARGUMENTS, DESCRIPTIONS, EXPRESSIONS, NAMES, ask_sum

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

BEFORE_TOOLS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
AFTER_TOOLS = """
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""

UNKNOWN_THOUGHT = "This is outside of what I know."
# Questions that need no tool: (question type, maker); see `ToolKind.tags`.
PLAIN: tuple[tuple[str, Callable[[random.Random, bool], Example]], ...] = (
    ("capital", capital),
    ("arithmetic", arithmetic),
    ("fact", fact),
    ("fact", fact),
    ("term", term),
    ("identity", identity),
    ("small talk", small_talk),
    ("unknown", unknown),
)


@dataclass(frozen=True)
class Request:
    """A request that needs a tool, with the expected call, result and answer."""

    text: str
    call: str
    result: str
    answer: str


@dataclass(frozen=True)
class Tool:
    """A tool of one chat: `listed` is its JSON, `ask` makes a request for it."""

    name: str
    listed: str
    tags: frozenset[str]
    ask: Callable[[random.Random, bool], Request]


def write_call(name: str, arguments: dict[str, object]) -> str:
    """Formats a tool call in the chat template's format."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def as_value(text: str, type_name: str) -> object:
    """Converts an argument's text to its JSON value."""
    return int(text) if type_name in ("integer", "number") else text


def list_tool(
    rng: random.Random,
    name: str,
    description: str,
    properties: dict[str, dict[str, object]],
    required: Sequence[str],
) -> str:
    """Formats a tool's JSON for the system message; optional keys are sometimes omitted."""
    parameters: dict[str, object] = {"type": "object", "properties": properties}
    if required and rng.random() < 0.88:
        parameters["required"] = list(required)
    if rng.random() < 0.12:
        parameters["additionalProperties"] = False
    function: dict[str, object] = {"name": name}
    if rng.random() < 0.6:
        function["description"] = description
    function["parameters"] = parameters
    if rng.random() < 0.06:
        function["strict"] = True
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _result(rng: random.Random, arguments: dict[str, object], fields: dict[str, object]) -> str:
    """Formats a tool's result as text or as an object, sometimes repeating the arguments."""
    choice = rng.random()
    if len(fields) == 1 and choice < 0.45:
        return _plain(next(iter(fields.values())))
    if choice < 0.65 and arguments:
        fields = {**arguments, **fields}
    return json.dumps(fields, ensure_ascii=False)


def _action_result(rng: random.Random) -> str:
    """Samples the result of a tool that performs an action."""
    return rng.choice(("ok", "done", '{"status": "ok"}', '{"success": true}', '{"ok": true}',
                       "OK", '{"status": "done"}', '{"result": "ok"}', "true"))  # fmt: skip


def lookup_tool(rng: random.Random, kind: ToolKind) -> Tool:
    """Makes a tool of a kind, with sampled names."""
    name = rng.choice(kind.names)
    order = list(range(len(kind.slots)))
    if rng.random() < 0.25:
        rng.shuffle(order)
    names = [rng.choice(slot.names) for slot in kind.slots]
    if len(set(names)) < len(names):
        names = [slot.names[0] for slot in kind.slots]
    used = [i for i in order if not kind.slots[i].said or rng.random() < 0.5]
    properties: dict[str, dict[str, object]] = {}
    for i in used:
        properties[names[i]] = {"type": kind.slots[i].type}
        if kind.slots[i].enum:
            properties[names[i]]["enum"] = list(kind.slots[i].enum)
        elif rng.random() < 0.08:
            properties[names[i]]["description"] = f"The {names[i].replace('_', ' ')}."
    required = [names[i] for i in used if not kind.slots[i].said]
    listed = list_tool(rng, name, rng.choice(kind.descriptions), properties, required)

    def ask(rng: random.Random, held_out: bool) -> Request:
        values = [slot.draw(rng, held_out) for slot in kind.slots]
        text = phrase(rng, kind.requests, held_out, **dict(zip("abc", values, strict=False)))
        arguments: dict[str, object] = {}
        for i in used:
            if kind.slots[i].said:
                if rng.random() < 0.5:
                    continue
                text = f"{text} {rng.choice(kind.slots[i].said).format(u=values[i])}"
            arguments[names[i]] = as_value(values[i], kind.slots[i].type)
        call = write_call(name, arguments)
        if kind.values is None:
            return Request(text, call, _action_result(rng), "It is done.")
        if rng.random() < 0.05:
            return Request(text, call, '{"error": "not found"}', "The tool says: not found.")
        topic = kind.topic.format(**dict(zip("abc", values, strict=False)))
        if len(kind.result) > 2 and kind.answer != "{v}" and rng.random() < 0.2:
            fields = {
                key: as_value(value, "number") if value.lstrip("-").isdigit() else value
                for key in rng.sample(kind.result, 2)
                for value in [kind.values(rng, held_out)]
            }
            values_text = ", ".join(
                f"{key.replace('_', ' ')} {value}" for key, value in fields.items()
            )
            answer = f"{topic}: {values_text}."
        else:
            value = kind.values(rng, held_out)
            number = as_value(value, "number") if value.lstrip("-").isdigit() else value
            fields = {rng.choice(kind.result): number}
            answer = kind.answer.format(topic=topic, v=value)
        return Request(text, call, _result(rng, arguments, fields), answer[0].upper() + answer[1:])

    return Tool(name, listed, kind.tags, ask)


def sum_tool(rng: random.Random) -> Tool:
    """Makes a calculator tool."""
    op = rng.choice(("+", "+", "-", "*", "", ""))
    name = rng.choice(NAMES[op])
    arguments = rng.choice(ARGUMENTS) if op else (rng.choice(EXPRESSIONS),)
    type_name = rng.choice(("number", "integer")) if op else "string"
    properties: dict[str, dict[str, object]] = {key: {"type": type_name} for key in arguments}
    listed = list_tool(rng, name, rng.choice(DESCRIPTIONS[op]), properties, arguments)

    def ask(rng: random.Random, held_out: bool) -> Request:
        asked = ask_sum(rng, held_out, op)
        given = {
            key: as_value(value, type_name)
            for key, value in zip(arguments, asked.values, strict=True)
        }
        fields: dict[str, object] = {
            rng.choice(("result", "sum", "value", "answer")): int(asked.result)
        }
        result = _result(rng, given, fields)
        return Request(asked.request, write_call(name, given), result, asked.answer)

    return Tool(name, listed, frozenset({"arithmetic"}), ask)


def draw_tool(rng: random.Random, held_out: bool) -> Tool:
    """Samples a tool."""
    choice = rng.random()
    if choice < 0.12:
        return sum_tool(rng)
    if choice < 0.4:
        return lookup_tool(rng, invented_kind(rng, held_out))
    if choice < 0.5:
        return lookup_tool(rng, KINDS[0])  # weather: the most common example of a tool
    return lookup_tool(rng, rng.choice(KINDS))


def draw_tools(rng: random.Random, held_out: bool) -> list[Tool]:
    """Samples one to three tools with different names."""
    tools: list[Tool] = []
    count = rng.choice((1, 1, 1, 2, 2, 3))
    while len(tools) < count:
        tool = draw_tool(rng, held_out)
        if all(tool.name != other.name and tool.listed != other.listed for other in tools):
            tools.append(tool)
    return tools


def system_turn(tools: Sequence[Tool]) -> Message:
    """Makes the system message, which lists the tools."""
    listed = "\n".join(tool.listed for tool in tools)
    return {"role": "system", "content": f"{BEFORE_TOOLS}{listed}{AFTER_TOOLS}"}


def result_turn(result: str) -> Message:
    """Makes the user message that contains a tool's result."""
    return {"role": "user", "content": f"<tool_response>\n{result}\n</tool_response>"}


def turn(role: str, text: str) -> Message:
    """Makes a chat message."""
    return {"role": role, "content": text}


def no_tool(rng: random.Random, tools: Sequence[Tool], held_out: bool) -> tuple[str, str, str]:
    """Makes a question that no listed tool matches; returns (question, answer, reasoning)."""
    tags = frozenset().union(*(tool.tags for tool in tools))
    if rng.random() < 0.3:
        other = draw_tool(rng, held_out)
        listed = {tool.listed.partition('"parameters"')[0] for tool in tools}
        is_new = other.listed.partition('"parameters"')[0] not in listed
        if is_new and not other.tags & {"arithmetic", "capital"} and _is_other(other, tools):
            return other.ask(rng, held_out).text, UNKNOWN_ANSWER, UNKNOWN_THOUGHT
    while True:
        tag, make = rng.choice(PLAIN)
        if tag not in tags:
            example = make(rng, held_out)
            return example.prompt[-1]["content"], example.answer, example.thought


def _is_other(tool: Tool, tools: Sequence[Tool]) -> bool:
    """Whether a tool differs in kind from all listed tools, judging by their names."""
    words = set(tool.name.split("_")) - {"get", "find", "lookup", "of", "set", "current", "in"}
    same_kind = {name for kind in KINDS if tool.name in kind.names for name in kind.names}
    similar = {"weather", "temperature", "price", "convert", "time"}
    if any(word in tool.name for word in similar):
        return not any(word in other.name for other in tools for word in similar)
    return not any(other.name in same_kind or words & set(other.name.split("_")) for other in tools)


def tool_chat(rng: random.Random, held_out: bool) -> Example:
    """Makes a chat with a tool list and one request; in training, with two to six requests."""
    tools = draw_tools(rng, held_out)
    num_rounds = 1 if held_out else rng.choice((2, 3, 4, 5, 6))
    messages = [system_turn(tools)]
    for index in range(num_rounds):
        is_last = index == num_rounds - 1
        if rng.random() < (0.4 if is_last else 0.2):
            text, answer, thought = no_tool(rng, tools, held_out)
            messages += [turn("user", text), turn("assistant", answer)]
            kind = "tools: none fits"
            continue
        tool = rng.choice(tools)
        request = tool.ask(rng, held_out)
        thought, kind = f"The tool {tool.name} fits.", "tools: call"
        messages += [turn("user", request.text), turn("assistant", request.call)]
        if not is_last or rng.random() < 0.4:
            messages += [result_turn(request.result), turn("assistant", request.answer)]
            thought, kind = "The tool has answered.", "tools: result"
    return Example(kind, tuple(messages), thought, is_closed=not held_out and rng.random() < 0.75)
