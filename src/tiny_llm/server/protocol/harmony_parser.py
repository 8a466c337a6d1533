"""Streaming output parser of gpt-oss's messages: channels instead of `<think>`.

The output starts with the header of a message; see `engine/tool_calls/formats/harmony.py`. Messages
on the channel `analysis`, or to built-in tools, are reasoning.
"""

from typing import Any

from ...engine.tool_calls.format import ToolCallFormat
from ...engine.tool_calls.formats.harmony import (
    CHANNEL,
    CONSTRAIN,
    MESSAGE,
    MESSAGE_ENDS,
    START,
    HarmonyFormat,
    MessageHeader,
)
from ...engine.tool_calls.registry import AUTO, find_format
from ...models.tokenizer.chat_template import DEFAULT_TAGS, think_tags
from .output_parser import OutputParser, ParsedDelta, ParserState, ReasoningDelta, TextDelta
from .tool_calls import ToolCallOptions, ToolCallReader

HEADER_STARTS = (START, CHANNEL, CONSTRAIN, "to=", "assistant")
SEPARATOR = "\n\n"  # between messages of the same kind


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
    """Content of a complete message; without a tokenizer, reasoning is between `<think>` tags."""
    tags = think_tags(tokenizer)
    tool_call_format = find_format(AUTO, getattr(tokenizer, "chat_template", None))
    reasoning_open = tags[0] not in message and tags[1] in message  # the prompt has the start tag
    parser = make_output_parser(tool_call_format, True, reasoning_open, None, think_tags=tags)
    deltas = [*parser.feed(message), *parser.finish()]
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)).strip()


class HarmonyParser(OutputParser):
    """`OutputParser` for harmony; starts inside `final` unless `starts_message`."""

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
