"""From an answer's text, as it comes, to its parts: thinking, the answer itself, tool calls.

A thinking model writes `<think>…</think>` before it answers; its chat template may have opened the
thoughts already, or closed them. Tool calls have the form that Qwen3 learnt from Hermes:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

Text that may be the beginning of a tag is held back until it is clear.

For an answer that is sent at once, a tool call is held back until it is whole, because one that is
cut off, or is not JSON, is text. For a stream, a call is told in pieces: its name as soon as its
arguments begin, then each piece of them as long as they can still become JSON. So nothing that was
sent is wrong, and a call that is cut off is the beginning of one.
"""

import json
import re
import uuid
from dataclasses import dataclass, field, replace
from enum import StrEnum

from .partial_json import JsonObjectScanner, is_json_prefix

THINK_TAG, THINK_END_TAG = "<think>", "</think>"
TOOL_CALL_TAG, TOOL_CALL_END_TAG = "<tool_call>", "</tool_call>"
# A call up to its arguments, if they are an object and come after the name.
TOOL_CALL_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)'
)


@dataclass(frozen=True)
class ReasoningDelta:
    """More of what the model thinks."""

    text: str


@dataclass(frozen=True)
class TextDelta:
    """More of the answer."""

    text: str


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True)
class ToolCallDelta:
    """A tool call, or a piece of one.

    Attributes:
        name: of the tool.
        arguments: JSON; in a piece, what it adds to them.
        id: the same in all pieces.
        is_new: False for pieces after the first.
    """

    name: str
    arguments: str
    id: str = field(default_factory=_new_call_id)
    is_new: bool = True


ParsedDelta = ReasoningDelta | TextDelta | ToolCallDelta


class _State(StrEnum):
    START = "beginning"
    REASONING = "thinking"
    CONTENT = "answering"
    TOOL_CALL = "calling"
    TOOL_ARGUMENTS = "arguments"  # of a call that is told in pieces
    TOOL_CALL_END = "closing"  # after them


class OutputParser:
    """Splits one answer.

    Args:
        thinking_enabled: whether the model has a thinking mode.
        reasoning_open: whether the prompt has opened the thoughts.
        parse_tool_calls: whether tool calls are looked for.
        stream_tool_calls: whether tool calls are told in pieces.
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
        self._call = ToolCallDelta("", "")  # the one that is told in pieces, so far
        self._reset_scanner()
        self._buffer = ""
        self._at_start = False  # of a part: white space before it is left out
        self._state = _State.CONTENT
        if reasoning_open:
            self._enter(_State.REASONING)
        elif thinking_enabled:
            self._state = _State.START

    @property
    def in_reasoning(self) -> bool:
        """Whether the next text is a thought, as far as is known."""
        return self._state is _State.REASONING

    @property
    def in_content(self) -> bool:
        """Whether the last text was a part of the answer itself."""
        is_before = self._state in (_State.START, _State.REASONING)
        return not is_before and not self._at_start

    def feed(self, text: str) -> list[ParsedDelta]:
        """Takes more text, and returns the parts that are certain."""
        is_plain = self._state is _State.CONTENT and not (self._parse_tool_calls or self._at_start)
        if is_plain and not self._buffer:  # most pieces: nothing has to be looked for
            return [TextDelta(text)] if text else []
        self._buffer += text
        parts: list[ParsedDelta] = []
        while self._advance(parts):
            pass
        return parts

    def finish(self) -> list[ParsedDelta]:
        """The rest, when the answer has ended."""
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

    def _advance(self, parts: list[ParsedDelta]) -> bool:
        """One step; returns whether there may be another."""
        match self._state:
            case _State.START:
                return self._parse_start()
            case _State.REASONING:
                return self._parse_reasoning(parts)
            case _State.CONTENT:
                return self._parse_content(parts)
            case _State.TOOL_CALL:
                return self._parse_tool_call_head(parts) or self._parse_whole_tool_call(parts)
            case _State.TOOL_ARGUMENTS:
                return self._parse_tool_arguments(parts)
            case _State.TOOL_CALL_END:
                return self._parse_tool_call_end()

    def _parse_start(self) -> bool:
        """Thoughts are only looked for at the very beginning."""
        text = self._buffer.lstrip()
        if text.startswith(THINK_TAG):
            self._buffer = text[len(THINK_TAG) :]
            self._enter(_State.REASONING)
        elif text and not THINK_TAG.startswith(text):
            self._state = _State.CONTENT
        else:
            return False
        return True

    def _parse_reasoning(self, parts: list[ParsedDelta]) -> bool:
        self._skip_space()
        thought, tag, rest = self._buffer.partition(THINK_END_TAG)
        if tag:
            self._buffer = rest
            if thought.rstrip():
                parts.append(ReasoningDelta(thought.rstrip()))
            self._enter(_State.CONTENT)
            return True
        self._emit(parts, ReasoningDelta, THINK_END_TAG)
        return False

    def _parse_content(self, parts: list[ParsedDelta]) -> bool:
        self._skip_space()
        if not self._parse_tool_calls:
            if self._buffer:
                parts.append(TextDelta(self._buffer))
            self._buffer = ""
            return False
        said, tag, rest = self._buffer.partition(TOOL_CALL_TAG)
        if tag:
            self._buffer = rest
            if said.rstrip():
                parts.append(TextDelta(said.rstrip()))
            self._state = _State.TOOL_CALL
            return True
        self._emit(parts, TextDelta, TOOL_CALL_TAG)
        return False

    def _reset_scanner(self) -> None:
        """Gets ready for a call's text."""
        self._scanner = JsonObjectScanner()
        self._num_scanned = 0  # characters that it has read
        self._end: int | None = None  # of the object, in the text that is held back

    def _parse_whole_tool_call(self, parts: list[ParsedDelta]) -> bool:
        end = self._end_of_object()
        if end is None:
            return False
        rest = self._buffer[end:].lstrip()
        if not rest.startswith(TOOL_CALL_END_TAG):
            if TOOL_CALL_END_TAG.startswith(rest):
                return False  # the tag is still to come
            call = None
        else:
            call = _tool_call(self._buffer[:end])
        self._reset_scanner()
        if call is None:  # it is text after all
            parts.append(TextDelta(TOOL_CALL_TAG + self._buffer[:end]))
            self._buffer = self._buffer[end:]
            self._state = _State.CONTENT
            return True
        parts.append(call)
        self._buffer = rest[len(TOOL_CALL_END_TAG) :]
        self._enter(_State.CONTENT)
        return True

    def _end_of_object(self) -> int | None:
        """Where a call's object ends; 0 if the text begins with none, None while it is open."""
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

    # ---------------------------------------------------------------- calls in pieces

    def _parse_tool_call_head(self, parts: list[ParsedDelta]) -> bool:
        """Tells a call's name when its arguments begin."""
        head = TOOL_CALL_HEAD.match(self._buffer) if self._stream_tool_calls else None
        if head is None:
            return False
        try:
            name = json.loads(head[1])
        except ValueError:
            return False
        self._call = ToolCallDelta(name, "")
        parts.append(self._call)
        self._buffer = self._buffer[head.end() :]
        self._reset_scanner()
        self._state = _State.TOOL_ARGUMENTS
        return True

    def _parse_tool_arguments(self, parts: list[ParsedDelta]) -> bool:
        """Tells more of the arguments, as long as they can become JSON; what cannot is text."""
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
        parts.append(replace(self._call, arguments=more, is_new=False))
        if end is None:
            return False
        self._reset_scanner()
        self._state = _State.TOOL_CALL_END
        return True

    def _parse_tool_call_end(self) -> bool:
        """Leaves out what is between the arguments and the closing tag, which is a brace."""
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
        self, parts: list[ParsedDelta], kind: type[ReasoningDelta] | type[TextDelta], tag: str
    ) -> None:
        """Gives out what cannot be a part of a tag, or white space before it."""
        safe = self._buffer
        for length in range(min(len(tag) - 1, len(safe)), 0, -1):
            if safe.endswith(tag[:length]):
                safe = safe[:-length]
                break
        safe = safe.rstrip()
        if safe:
            parts.append(kind(safe))
            self._buffer = self._buffer[len(safe) :]


def _tool_call(text: str) -> ToolCallDelta | None:
    """A call, or None if the text is not one."""
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
