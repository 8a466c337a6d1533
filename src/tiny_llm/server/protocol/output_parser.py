"""Streaming output parser: reasoning, content, tool calls.

A thinking model writes `<think>…</think>` before the content; the chat template may have opened or
closed the tag already. Tool calls have the Hermes format that Qwen3 was trained on:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

Text that may be the start of a tag is held back until it is unambiguous.

In a full response, a tool call is held back until it is complete: a truncated or malformed call is
returned as text. In a stream, a call is sent incrementally: its name when its arguments start, then
argument deltas as long as they are a prefix of valid JSON. Nothing sent is ever retracted, and a
truncated call is a prefix of a call.
"""

import json
import re
import uuid
from dataclasses import dataclass, field, replace
from enum import StrEnum

from .partial_json import JsonObjectScanner, is_json_prefix

THINK_TAG, THINK_END_TAG = "<think>", "</think>"
TOOL_CALL_TAG, TOOL_CALL_END_TAG = "<tool_call>", "</tool_call>"
# A call up to its arguments, if these are an object and follow the name.
TOOL_CALL_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)'
)


@dataclass(frozen=True)
class ReasoningDelta:
    """Reasoning text."""

    text: str


@dataclass(frozen=True)
class TextDelta:
    """Content text."""

    text: str


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True)
class ToolCallDelta:
    """A tool call, or a delta of a streamed one.

    Attributes:
        name: the tool's name.
        arguments: JSON text; in a delta, the added text.
        id: id of the call, the same in all its deltas.
        is_new: False for deltas after the first.
    """

    name: str
    arguments: str
    id: str = field(default_factory=_new_call_id)
    is_new: bool = True


ParsedDelta = ReasoningDelta | TextDelta | ToolCallDelta


class _State(StrEnum):
    START = "start"
    REASONING = "reasoning"
    CONTENT = "content"
    TOOL_CALL = "tool call"
    TOOL_ARGUMENTS = "tool arguments"  # of a streamed call
    TOOL_CALL_END = "tool call end"  # of a streamed call


class OutputParser:
    """Splits the text of one completion.

    Args:
        thinking_enabled: whether the model has a thinking mode.
        reasoning_open: whether the prompt ends inside `<think>`.
        parse_tool_calls: whether to parse tool calls.
        stream_tool_calls: whether to emit tool calls incrementally.
    """

    def __init__(
        self,
        thinking_enabled: bool,
        reasoning_open: bool,
        parse_tool_calls: bool,
        stream_tool_calls: bool = False,
    ):
        self._parse_tool_calls = parse_tool_calls
        self._stream_tool_calls = stream_tool_calls
        self._call = ToolCallDelta("", "")  # the current streamed call
        self._reset_scanner()
        self._buffer = ""
        self._at_start = False  # of a section, whose leading whitespace is dropped
        self._state = _State.CONTENT
        if reasoning_open:
            self._enter(_State.REASONING)
        elif thinking_enabled:
            self._state = _State.START

    @property
    def in_reasoning(self) -> bool:
        """Whether the parser is inside the reasoning."""
        return self._state is _State.REASONING

    @property
    def in_content(self) -> bool:
        """Whether the last text was content."""
        precedes_content = self._state in (_State.START, _State.REASONING)
        return not precedes_content and not self._at_start

    def feed(self, text: str) -> list[ParsedDelta]:
        """Adds text; returns the deltas that are unambiguous."""
        is_plain = self._state is _State.CONTENT and not (self._parse_tool_calls or self._at_start)
        if is_plain and not self._buffer:  # the common case: nothing to parse
            return [TextDelta(text)] if text else []
        self._buffer += text
        deltas: list[ParsedDelta] = []
        while self._advance(deltas):
            pass
        return deltas

    def finish(self) -> list[ParsedDelta]:
        """Ends the text; returns the remaining deltas."""
        rest, self._buffer = self._buffer, ""
        if self._state is _State.TOOL_CALL:
            return [TextDelta(TOOL_CALL_TAG + rest)]
        if self._state is _State.REASONING:
            rest = rest.rstrip()
            return (
                [ReasoningDelta(rest)] if rest and not (self._at_start and not rest.strip()) else []
            )
        if self._state is _State.TOOL_CALL_END:
            rest = rest.strip().removeprefix("}").strip()
            rest = "" if TOOL_CALL_END_TAG.startswith(rest) else rest
        return [TextDelta(rest)] if rest else []

    def _enter(self, state: _State) -> None:
        self._state = state
        self._at_start = True

    def _advance(self, deltas: list[ParsedDelta]) -> bool:
        """Parses one section; returns whether the state changed."""
        match self._state:
            case _State.START:
                return self._parse_start()
            case _State.REASONING:
                return self._parse_reasoning(deltas)
            case _State.CONTENT:
                return self._parse_content(deltas)
            case _State.TOOL_CALL:
                return self._parse_tool_call_head(deltas) or self._parse_whole_tool_call(deltas)
            case _State.TOOL_ARGUMENTS:
                return self._parse_tool_arguments(deltas)
            case _State.TOOL_CALL_END:
                return self._parse_tool_call_end()

    def _parse_start(self) -> bool:
        """Detects `<think>`, which is a tag at the very start only."""
        text = self._buffer.lstrip()
        if text.startswith(THINK_TAG):
            self._buffer = text[len(THINK_TAG) :]
            self._enter(_State.REASONING)
        elif text and not THINK_TAG.startswith(text):
            self._state = _State.CONTENT
        else:
            return False
        return True

    def _parse_reasoning(self, deltas: list[ParsedDelta]) -> bool:
        self._skip_space()
        reasoning, tag, rest = self._buffer.partition(THINK_END_TAG)
        if tag:
            self._buffer = rest
            if reasoning.rstrip():
                deltas.append(ReasoningDelta(reasoning.rstrip()))
            self._enter(_State.CONTENT)
            return True
        self._emit(deltas, ReasoningDelta, THINK_END_TAG)
        return False

    def _parse_content(self, deltas: list[ParsedDelta]) -> bool:
        self._skip_space()
        if not self._parse_tool_calls:
            if self._buffer:
                deltas.append(TextDelta(self._buffer))
            self._buffer = ""
            return False
        content, tag, rest = self._buffer.partition(TOOL_CALL_TAG)
        if tag:
            self._buffer = rest
            if content.rstrip():
                deltas.append(TextDelta(content.rstrip()))
            self._state = _State.TOOL_CALL
            return True
        self._emit(deltas, TextDelta, TOOL_CALL_TAG)
        return False

    def _reset_scanner(self) -> None:
        """Prepares for the next call."""
        self._scanner = JsonObjectScanner()
        self._num_scanned = 0  # characters read by the scanner
        self._end: int | None = None  # end of the object in the buffer

    def _parse_whole_tool_call(self, deltas: list[ParsedDelta]) -> bool:
        end = self._end_of_object()
        if end is None:
            return False
        rest = self._buffer[end:].lstrip()
        if not rest.startswith(TOOL_CALL_END_TAG):
            if TOOL_CALL_END_TAG.startswith(rest):
                return False  # the tag is incomplete
            call = None
        else:
            call = _tool_call(self._buffer[:end])
        self._reset_scanner()
        if call is None:  # malformed: returned as text
            deltas.append(TextDelta(TOOL_CALL_TAG + self._buffer[:end]))
            self._buffer = self._buffer[end:]
            self._state = _State.CONTENT
            return True
        deltas.append(call)
        self._buffer = rest[len(TOOL_CALL_END_TAG) :]
        self._enter(_State.CONTENT)
        return True

    def _end_of_object(self) -> int | None:
        """Index after the call's object; 0 without an object, None while it is open."""
        if self._end is None:
            text = self._buffer.lstrip()
            if text and text[0] != "{":
                return 0
            if self._num_scanned == 0:
                self._num_scanned = len(self._buffer) - len(text)
            end = self._scanner.feed(self._buffer[self._num_scanned :])
            if end is not None:
                self._end = self._num_scanned + end
            self._num_scanned = len(self._buffer)
        return self._end

    # ---------------------------------------------------------------- streamed calls

    def _parse_tool_call_head(self, deltas: list[ParsedDelta]) -> bool:
        """Emits a call's name when its arguments start."""
        head = TOOL_CALL_HEAD.match(self._buffer) if self._stream_tool_calls else None
        if head is None:
            return False
        try:
            name = json.loads(head[1])
        except ValueError:
            return False
        self._call = ToolCallDelta(name, "")
        deltas.append(self._call)
        self._buffer = self._buffer[head.end() :]
        self._reset_scanner()
        self._state = _State.TOOL_ARGUMENTS
        return True

    def _parse_tool_arguments(self, deltas: list[ParsedDelta]) -> bool:
        """Emits argument deltas while they are valid JSON so far; the rest becomes text."""
        if not self._buffer:
            return False
        end = self._scanner.feed(self._buffer)
        more, self._buffer = self._buffer[:end], "" if end is None else self._buffer[end:]
        arguments = self._call.arguments + more
        if not is_json_prefix(arguments):
            self._reset_scanner()
            self._buffer = more + self._buffer
            self._state = _State.CONTENT
            return True
        self._call = replace(self._call, arguments=arguments)
        deltas.append(replace(self._call, arguments=more, is_new=False))
        if end is None:
            return False
        self._reset_scanner()
        self._state = _State.TOOL_CALL_END
        return True

    def _parse_tool_call_end(self) -> bool:
        """Skips the closing brace and the end tag."""
        _, tag, rest = self._buffer.partition(TOOL_CALL_END_TAG)
        if not tag:
            return False
        self._buffer = rest
        self._enter(_State.CONTENT)
        return True

    def _skip_space(self) -> None:
        if self._at_start:
            self._buffer = self._buffer.lstrip()
            self._at_start = not self._buffer

    def _emit(
        self, deltas: list[ParsedDelta], kind: type[ReasoningDelta] | type[TextDelta], tag: str
    ) -> None:
        """Emits buffered text, except a possible tag prefix and whitespace before it."""
        safe = self._buffer
        for length in range(min(len(tag) - 1, len(safe)), 0, -1):
            if safe.endswith(tag[:length]):
                safe = safe[:-length]
                break
        safe = safe.rstrip()
        if safe:
            deltas.append(kind(safe))
            self._buffer = self._buffer[len(safe) :]


def _tool_call(text: str) -> ToolCallDelta | None:
    """Parses a call; None if malformed."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCallDelta(call["name"], arguments)
