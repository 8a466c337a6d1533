"""ToolCallReader: conversion of tool-call parser events to deltas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .format import ArgumentsDelta, CallEnd, CallStart, Event, TextSource, ToolCallFormat


@dataclass(frozen=True)
class ToolCallDelta:
    """A tool call, or a delta of a streamed call."""

    name: str
    arguments: str  # JSON text; in a delta, the added text
    id: str  # the same in all deltas of a call
    is_new: bool = True  # False for deltas after the first


@dataclass(frozen=True)
class ToolCallOptions:
    format: ToolCallFormat
    tools: Sequence[Mapping[str, Any]] = ()  # in OpenAI's format
    is_stream: bool = False  # whether to emit calls incrementally
    # Whether output that does not start with a call is structured output, which contains no calls.
    has_structured_content: bool = False


class ToolCallReader:
    """Reads the calls in `text`, which starts at a tag or whitespace before it."""

    def __init__(self, options: ToolCallOptions, text: str):
        functions = {tool["function"]["name"]: tool["function"] for tool in options.tools}
        self.source = TextSource(text)  # the caller appends further output
        self.is_open = False  # whether a call has started but not ended
        self._options = options
        self._events = options.format.parse(self.source, functions)
        self._name, self._id = "", ""
        self._arguments: list[str] = []  # JSON text of the current call's arguments

    def read(self, deltas: list[Any]) -> bool:
        """Appends deltas for the text so far; returns whether the calls have ended.

        Raises:
            MalformedCallError: the rest of the text, starting with `source.taken`, is not a call.
        """
        for event in self._events:
            if event is None:
                return False
            delta = self._to_delta(event)
            if delta is not None:
                deltas.append(delta)
                self.source.mark()
        return True

    def _to_delta(self, event: Event) -> ToolCallDelta | None:
        is_stream = self._options.is_stream
        match event:
            case CallStart(name):
                self.is_open, self._name, self._arguments = True, name, []
                self._id = self._options.format.new_call_id()
                return ToolCallDelta(name, "", self._id) if is_stream else None
            case ArgumentsDelta(text):
                self._arguments.append(text)
                return ToolCallDelta(self._name, text, self._id, False) if is_stream else None
            case CallEnd():
                self.is_open = False
                if not is_stream:
                    return ToolCallDelta(self._name, "".join(self._arguments), self._id)
                self.source.mark()
        return None
