"""Streaming output parser: splits text into reasoning, content, tool calls.

A thinking model writes `<think>…</think>`, or other tags, before the content; the chat template may
have opened or closed the tag already. gpt-oss writes messages on channels instead. The format of
tool calls depends on the model (`engine/tool_calls`); in some formats, a call also ends the
reasoning.

Text that may be the start of a tag is held back until the ambiguity is resolved.

In a full response, a tool call is held back until it is complete: a truncated or malformed call is
returned as text. In a stream, a call is sent incrementally: its name when its arguments start, then
argument deltas as long as they are a prefix of valid JSON. Nothing sent is ever retracted, so a
truncated call stays incomplete. Complete calls are the same in both modes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from ...models.tokenizer.chat_template import DEFAULT_TAGS, think_tags
from ..tool_calls.format import (
    MalformedCallError,
    ToolCallDelta,
    ToolCallFormat,
    ToolCallOptions,
    ToolCallReader,
)
from ..tool_calls.harmony import (
    CHANNEL,
    CONSTRAIN,
    MESSAGE,
    MESSAGE_ENDS,
    START,
    HarmonyFormat,
    MessageHeader,
)
from ..tool_calls.registry import AUTO, find_format


@dataclass(frozen=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True)
class TextDelta:
    text: str


ParsedDelta = ReasoningDelta | TextDelta | ToolCallDelta


class ParserState(StrEnum):
    START = "start"
    REASONING = "reasoning"
    CONTENT = "content"
    TOOL_CALLS = "tool calls"


def tag_prefix_length(text: str, tags: Sequence[str]) -> int:
    """Returns the length of the longest suffix that may be the start of a tag.

    Args:
        text: text without a complete tag.
        tags: the tags; not empty.
    """
    # [task 5.5.1 prefix]
    longest = max(map(len, tags)) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(tag.startswith(text[-length:]) for tag in tags):
            return length
    return 0
    # [/task 5.5.1 prefix]


@cache
def _call_pattern(tag: str, text: str) -> re.Pattern[str]:
    """Matches `tag`, whitespace and `text` (group 1), or a prefix of them at the end."""
    tag_start, text_start = (
        "|".join(re.escape(whole[:length]) for length in range(len(whole) - 1, 0, -1))
        for whole in (tag, text)
    )
    tag, text = re.escape(tag), re.escape(text)
    return re.compile(rf"{tag}\s*(?:({text})|(?:{text_start})?\Z)|(?:{tag_start})\Z")


class OutputParser:
    """Splits one completion's text into reasoning, content and tool calls.

    Args:
        thinking_enabled: whether the text may start with `<think>`.
        reasoning_open: whether the prompt ends inside `<think>`.
        tool_calls: how to parse tool calls; None if calls are impossible.
        think_tags: tags around the reasoning, `<think>` and `</think>` by default.

    Attributes:
        has_incomplete_call: whether a tool call was truncated or malformed.
        num_fed: number of characters so far.
        content_start: number of characters before the content or first tool call; None until known.
    """

    def __init__(
        self,
        thinking_enabled: bool,
        reasoning_open: bool,
        tool_calls: ToolCallOptions | None = None,
        think_tags: tuple[str, str] = DEFAULT_TAGS,
    ):
        self.think_tag, self.think_end_tag = think_tags
        self.has_incomplete_call = False
        self.num_fed = 0
        self.content_start: int | None = None
        self._options = tool_calls
        self._tags = () if tool_calls is None else tool_calls.format.tags
        self._first_tags = () if tool_calls is None else tool_calls.format.first_tags
        reasoning_tags = None if tool_calls is None else tool_calls.format.reasoning_tags
        self._reasoning_call = None if reasoning_tags is None else _call_pattern(*reasoning_tags)
        self._buffer = ""
        self._at_start = False  # whether at the start of a section, where whitespace is dropped
        self._state = ParserState.CONTENT
        if reasoning_open:
            self._enter(ParserState.REASONING)
        elif thinking_enabled:
            self._state = ParserState.START
        else:
            self.content_start = 0

    @property
    def in_reasoning(self) -> bool:
        return self._state is ParserState.REASONING

    def feed(self, text: str) -> list[ParsedDelta]:
        """Adds text; returns the deltas that are now unambiguous."""
        self.num_fed += len(text)
        is_plain = self._state is ParserState.CONTENT and not (self._tags or self._at_start)
        if is_plain and not self._buffer:  # fast path: nothing to parse
            return [TextDelta(text)] if text else []
        if self._state is ParserState.TOOL_CALLS:
            self._reader.source.buffer += text
        else:
            self._buffer += text
        deltas: list[ParsedDelta] = []
        while self._advance(deltas):
            pass
        return deltas

    def finish(self, is_truncated: bool = False) -> list[ParsedDelta]:
        """Ends the text, if `is_truncated` at a limit or stop string; returns the last deltas."""
        deltas: list[ParsedDelta] = []
        while self._state is ParserState.TOOL_CALLS:
            self._reader.source.has_ended = True
            self._reader.source.is_truncated = is_truncated
            while self._advance(deltas):
                pass
        rest, self._buffer = self._buffer, ""
        if self._state is ParserState.REASONING:
            rest = rest.rstrip()
            if rest:
                deltas.append(ReasoningDelta(rest))
        elif rest and not (self._at_start and not rest.strip()):
            self._start_content(rest)
            deltas.append(TextDelta(rest))
        return deltas

    def _start_content(self, rest: str) -> None:
        """Notes where the content starts, once there is any; `rest` is the text from there."""
        if self.content_start is None and not self._at_start:
            self.content_start = self.num_fed - len(rest)

    def _enter(self, state: ParserState) -> None:
        self._state = state
        self._at_start = True

    def _advance(self, deltas: list[ParsedDelta]) -> bool:
        """Parses text in the current state; returns whether the state changed."""
        match self._state:
            case ParserState.START:
                return self._parse_start()
            case ParserState.REASONING:
                return self._parse_reasoning_until_call(deltas)
            case ParserState.CONTENT:
                return self._parse_content(deltas)
            case ParserState.TOOL_CALLS:
                return self._parse_tool_calls(deltas)

    def _parse_start(self) -> bool:
        """Detects `<think>`, which is a tag only at the start of the completion."""
        # [task 5.5.2 start]
        text = self._buffer.lstrip()
        if text.startswith(self.think_tag):
            self._buffer = text[len(self.think_tag) :]
            self._enter(ParserState.REASONING)
        elif text and not self.think_tag.startswith(text):
            self._state = ParserState.CONTENT
        else:
            return False
        return True
        # [/task 5.5.2 start]

    def _parse_reasoning_until_call(self, deltas: list[ParsedDelta]) -> bool:
        pattern, end = self._reasoning_call, self._buffer.find(self.think_end_tag)
        call = None if pattern is None else pattern.search(self._buffer)
        if call is None or 0 <= end < call.start():
            return self._parse_reasoning(deltas)
        self._buffer, rest = self._buffer[: call.start()], self._buffer[call.start() :]
        self._parse_reasoning(deltas)
        if not call[1]:  # a possible start of a call
            self._buffer += rest
            return False
        if self._buffer.strip():
            deltas.append(ReasoningDelta(self._buffer.rstrip()))
        self._buffer = rest
        self._enter(ParserState.CONTENT)
        return True

    def _parse_reasoning(self, deltas: list[ParsedDelta]) -> bool:
        """Emits the reasoning, up to `</think>`."""
        # [task 5.5.2 reasoning]
        self._skip_space()
        reasoning, tag, rest = self._buffer.partition(self.think_end_tag)
        if tag:
            self._buffer = rest
            if reasoning.rstrip():
                deltas.append(ReasoningDelta(reasoning.rstrip()))
            self._enter(ParserState.CONTENT)
            return True
        self._emit(deltas, ReasoningDelta, (self.think_end_tag,))
        return False
        # [/task 5.5.2 reasoning]

    def _parse_content(self, deltas: list[ParsedDelta]) -> bool:
        self._skip_space()
        self._start_content(self._buffer)
        self._check_first()
        tags = (*self._tags, *self._first_tags)
        if not tags:
            if self._buffer:
                deltas.append(TextDelta(self._buffer))
            self._buffer = ""
            return False
        starts = [start for tag in tags if (start := self._buffer.find(tag)) >= 0]
        if not starts:
            self._emit(deltas, TextDelta, tags)
            return False
        content = self._buffer[: min(starts)].rstrip()
        if content:
            deltas.append(TextDelta(content))
        assert self._options is not None
        self._reader = ToolCallReader(self._options, self._buffer[len(content) :])
        self._buffer = ""
        self._first_tags = ()
        self._state = ParserState.TOOL_CALLS
        return True

    def _check_first(self) -> None:
        """Drops tags that cannot occur once content has started with other text.

        These are the tags valid only at the start or, in structured content, all tags.
        """
        has_structured_content = self._options is not None and self._options.has_structured_content
        text = self._buffer.lstrip()
        if not text or not (self._first_tags or has_structured_content):
            return
        if not any(tag.startswith(text[: len(tag)]) for tag in (*self._tags, *self._first_tags)):
            self._first_tags = ()
            self._tags = () if has_structured_content else self._tags

    def _skip_space(self) -> None:
        if self._at_start:
            self._buffer = self._buffer.lstrip()
            self._at_start = not self._buffer

    def _emit(
        self,
        deltas: list[ParsedDelta],
        kind: type[ReasoningDelta] | type[TextDelta],
        tags: Sequence[str],
    ) -> None:
        """Emits buffered text, except a possible tag prefix and whitespace before it."""
        # [task 5.5.1 emit]
        safe = self._buffer[: len(self._buffer) - tag_prefix_length(self._buffer, tags)].rstrip()
        if safe:
            deltas.append(kind(safe))
            self._buffer = self._buffer[len(safe) :]
        # [/task 5.5.1 emit]

    def _parse_tool_calls(self, deltas: list[ParsedDelta]) -> bool:
        reader, source = self._reader, self._reader.source
        try:
            if not reader.read(deltas):
                return False
            self._enter(ParserState.CONTENT)
            self._buffer = source.buffer
        except MalformedCallError:
            assert self._options is not None
            self.has_incomplete_call |= reader.is_open
            self._state = ParserState.CONTENT
            if not source.num_taken and source.buffer.lstrip().startswith(self._tags):
                source.take(1)  # prevents an endless loop: the same tag would start a call again
            is_truncated_call = source.has_ended and reader.is_open and self._options.is_stream
            if not is_truncated_call:  # the text after the last delta is content, not a call
                if source.taken:
                    deltas.append(TextDelta(source.taken))
                self._buffer = source.buffer
        return True


# How a harmony message's header may start.
HEADER_STARTS = (START, CHANNEL, CONSTRAIN, "to=", "assistant")
SEPARATOR = "\n\n"  # between messages of the same kind


class HarmonyParser(OutputParser):
    """Parser of gpt-oss's messages (`tool_calls/harmony.py`): channels instead of `<think>`.

    Messages on the channel `analysis`, or to built-in tools, are reasoning.

    Args:
        starts_message: whether the output starts with a message's header; if not, it starts inside
            a message on the channel `final`.
    """

    def __init__(self, tool_calls: ToolCallOptions | None, starts_message: bool = True):
        super().__init__(starts_message, False, tool_calls)
        self._tags = MESSAGE_ENDS
        self._is_new = True  # whether no text of the current message has been emitted
        self._kinds: set[ParserState] = set()  # states whose text has been emitted

    def finish(self, is_truncated: bool = False) -> list[ParsedDelta]:
        if self._state is ParserState.START and self._is_header():
            self._buffer = ""  # truncated header
        return super().finish(is_truncated)

    def _is_header(self) -> bool:
        """Whether the buffer may be the start of a message's header."""
        text = self._buffer.lstrip()
        return any(text.startswith(tag) or tag.startswith(text) for tag in HEADER_STARTS)

    def _parse_start(self) -> bool:
        text, tag, rest = self._buffer.partition(MESSAGE)
        if not self._is_header():
            self._enter(ParserState.CONTENT)  # no header: plain text
            return True
        if not tag:
            return False
        header = MessageHeader.parse(text)
        if header.function is not None and self._options is not None:
            self._at_start = False
            self._start_content(self._buffer)
            self._reader = ToolCallReader(self._options, self._buffer)
            self._buffer, self._state = "", ParserState.TOOL_CALLS
            return True
        self._buffer, self._is_new = rest, True
        self._enter(ParserState.CONTENT if header.is_content else ParserState.REASONING)
        return True

    def _parse_reasoning_until_call(self, deltas: list[ParsedDelta]) -> bool:
        return self._parse_message(deltas, ReasoningDelta)

    def _parse_content(self, deltas: list[ParsedDelta]) -> bool:
        return self._parse_message(deltas, TextDelta)

    def _parse_tool_calls(self, deltas: list[ParsedDelta]) -> bool:
        has_ended = super()._parse_tool_calls(deltas)
        if self._state is ParserState.CONTENT and self._at_start:  # the call was well-formed
            self._state = ParserState.START
        return has_ended

    def _parse_message(self, deltas: list[ParsedDelta], kind: Any) -> bool:
        """Emits a message's text, up to its end."""
        self._skip_space()
        if kind is TextDelta:
            self._start_content(self._buffer)
        num_before = len(deltas)
        ends = [(at, tag) for tag in MESSAGE_ENDS if (at := self._buffer.find(tag)) >= 0]
        if ends:
            at, tag = min(ends)
            if text := self._buffer[:at].rstrip():
                deltas.append(kind(text))
            self._buffer = self._buffer[at + len(tag) :]
        else:
            self._emit(deltas, kind, MESSAGE_ENDS)
        if len(deltas) > num_before and self._is_new:
            self._is_new = False
            if self._state in self._kinds:
                deltas.insert(num_before, kind(SEPARATOR))
            self._kinds.add(self._state)
        if ends:
            self._state = ParserState.START
        return bool(ends)


def make_output_parser(
    tool_call_format: ToolCallFormat,
    thinking_enabled: bool,
    reasoning_open: bool,
    tool_calls: ToolCallOptions | None,
    starts_message: bool = True,
    think_tags: tuple[str, str] = DEFAULT_TAGS,
) -> OutputParser:
    """Returns the parser for a model's format; `starts_message`: see `HarmonyParser`."""
    if isinstance(tool_call_format, HarmonyFormat):
        return HarmonyParser(tool_calls, starts_message)
    return OutputParser(thinking_enabled, reasoning_open, tool_calls, think_tags)


def without_reasoning(message: str, tokenizer: Any = None) -> str:
    """Returns a complete message's content; without a tokenizer, assumes `<think>` tags."""
    tags = think_tags(tokenizer)
    tool_call_format = find_format(AUTO, getattr(tokenizer, "chat_template", None))
    reasoning_open = tags[0] not in message and tags[1] in message  # the prompt has the start tag
    parser = make_output_parser(tool_call_format, True, reasoning_open, None, think_tags=tags)
    deltas = [*parser.feed(message), *parser.finish()]
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)).strip()
