"""Output items of a response, and their streaming events.

Reasoning becomes a `reasoning` item, text a `message` with one part, and a tool call a
`function_call`. At most one item is open at a time.
"""

import uuid
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from ..protocol.output_parser import ParsedDelta, ReasoningDelta, TextDelta, encode_reasoning
from ..protocol.tool_calls import ToolCallDelta

Event = dict[str, Any]

# By item type: prefix of its id, type of its content part, prefix of its text events' names.
ITEM_TYPES = {
    "message": ("msg", "output_text", "response.output_text"),
    "reasoning": ("rs", "reasoning_text", "response.reasoning_text"),
}
ARGUMENTS = "response.function_call_arguments"  # prefix of the names of tool-call events


class OutputItems:
    """Output items; `encrypt_reasoning` adds `encrypted_content` to reasoning."""

    def __init__(self, encrypt_reasoning: bool = False) -> None:
        self._encrypt_reasoning = encrypt_reasoning
        self.items: list[dict[str, Any]] = []
        self._is_open = False

    def add(self, part: ParsedDelta, logprobs: Sequence[dict[str, Any]] = ()) -> list[Event]:
        match part:
            case TextDelta(text):
                return self._grow("message", text, logprobs)
            case ReasoningDelta(text):
                return self._grow("reasoning", text)
            case ToolCallDelta(arguments=arguments):
                events = self._open_call(part) if part.is_new else []
                if arguments:
                    self.items[-1]["arguments"] += arguments
                    location = self._location()
                    events.append({"type": f"{ARGUMENTS}.delta", **location, "delta": arguments})
                return events

    def finish(self, is_incomplete: bool) -> list[Event]:
        """Closes the last item, which is truncated if `is_incomplete`.

        An empty response gets an empty message, because many clients read the first item.
        """
        events = [] if self.items else self._open("message")
        return [*events, *self._close("incomplete" if is_incomplete else "completed")]

    @property
    def ends_with_call(self) -> bool:
        return bool(self.items) and self.items[-1]["type"] == "function_call"

    def _grow(self, kind: str, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> list[Event]:
        events: list[Event] = []
        if not (self._is_open and self.items[-1]["type"] == kind):
            events += self._close("completed") + self._open(kind)
        part = self.items[-1]["content"][0]
        part["text"] += text
        location = self._location(content_index=0)
        delta = {"type": f"{ITEM_TYPES[kind][2]}.delta", **location, "delta": text}
        if kind == "message":
            part["logprobs"] += logprobs
            delta["logprobs"] = list(logprobs)
        return [*events, delta]

    def _open(self, kind: str) -> list[Event]:
        prefix, part_type, _ = ITEM_TYPES[kind]
        is_message = kind == "message"
        extra: dict[str, Any] = {"role": "assistant"} if is_message else {"summary": []}
        item = {**_new_item(kind, prefix), "content": [], **extra}
        part: dict[str, Any] = {"type": part_type, "text": ""}
        if is_message:
            part |= {"annotations": [], "logprobs": []}
        events = [self._added(item)]
        location = self._location(content_index=0)
        part_added = {"type": "response.content_part.added", **location, "part": deepcopy(part)}
        self.items[-1] = {**item, "content": [part]}
        self._is_open = True
        return [*events, part_added]

    def _close(self, status: str) -> list[Event]:
        if not self._is_open:
            return []
        self._is_open = False
        item = self.items[-1]
        item["status"] = status
        if item["type"] == "function_call":
            call = {name: item[name] for name in ("arguments", "name")}
            return [{"type": f"{ARGUMENTS}.done", **self._location(), **call}, self._done()]
        part = item["content"][0]
        if item["type"] == "reasoning" and self._encrypt_reasoning:
            item["encrypted_content"] = encode_reasoning(part["text"])
        location = self._location(content_index=0)
        done = {"type": f"{ITEM_TYPES[item['type']][2]}.done", **location, "text": part["text"]}
        if item["type"] == "message":
            done["logprobs"] = part["logprobs"]
        part_done = {"type": "response.content_part.done", **location, "part": {**part}}
        return [done, part_done, self._done()]

    def _open_call(self, call: ToolCallDelta) -> list[Event]:
        events = self._close("completed")
        item = {**_new_item("function_call", "fc"), "call_id": call.id, "name": call.name}
        events.append(self._added({**item, "arguments": ""}))
        self._is_open = True
        return events

    def _added(self, item: dict[str, Any]) -> Event:
        self.items.append(item)
        index = len(self.items) - 1
        return {"type": "response.output_item.added", "output_index": index, "item": {**item}}

    def _done(self) -> Event:
        index = len(self.items) - 1
        item = {**self.items[-1]}
        return {"type": "response.output_item.done", "output_index": index, "item": item}

    def _location(self, **content: int) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **content}


def _new_item(kind: str, prefix: str) -> dict[str, Any]:
    return {"type": kind, "id": f"{prefix}_{uuid.uuid4().hex}", "status": "in_progress"}
