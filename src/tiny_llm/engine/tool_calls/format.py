"""ToolCallFormat: interface, parsing and grammar of tool-call formats.

A parser is a generator that yields a call's events, and `None` to wait for more text. Its code thus
reads like a parser for complete text. `ToolCallReader` converts the events to deltas.

Grammars are in Lark. If the vocabulary has no special token for a tag, the model generates the tag
as ordinary text, and a *lazy* (shortest-match) rule finds it.

Source: llguidance's documentation of its Lark syntax.
"""

import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

Result = TypeVar("Result")


class MalformedCallError(Exception):
    """The text is not a tool call, or the output ended inside one."""


@dataclass(frozen=True)
class CallStart:
    name: str


@dataclass(frozen=True)
class ArgumentsDelta:
    """New JSON text of the arguments."""

    text: str


@dataclass(frozen=True)
class CallEnd:
    """End of a call: its arguments are complete."""


Event = CallStart | ArgumentsDelta | CallEnd
Events = Generator[Event | None, None, None]
Read = Generator[None, None, Result]


class TextSource:
    """Output text that may still grow.

    Attributes:
        buffer: unread text.
        has_ended: whether the output is complete.
        is_truncated: whether the output ended at a limit or stop string, not at an EOS token.
    """

    def __init__(self, buffer: str) -> None:
        self.buffer = buffer
        self.has_ended = False
        self.is_truncated = False
        self.num_taken = 0
        self._taken: list[str] = []  # text read since `mark`

    def take(self, number: int) -> str:
        """Reads `number` characters from the buffer."""
        text, self.buffer = self.buffer[:number], self.buffer[number:]
        self._taken.append(text)
        self.num_taken += len(text)
        return text

    def mark(self) -> None:
        """Marks the current position: `taken` is the text read after it."""
        self._taken = []

    @property
    def taken(self) -> str:
        return "".join(self._taken)

    def skip_space(self) -> Read[None]:
        """Reads whitespace; waits until another character arrives or the output ends."""
        while True:
            self.take(len(self.buffer) - len(self.buffer.lstrip()))
            if self.buffer or self.has_ended:
                return
            yield None

    def peek(self, *tags: str) -> Read[str]:
        """Returns the tag at the current position without reading it, or "" if none.

        Precondition: no tag is a prefix of another.
        """
        # [task 5.5.3 peek]
        while True:
            for tag in tags:
                if self.buffer.startswith(tag):
                    return tag
            if self.has_ended or not any(tag.startswith(self.buffer) for tag in tags):
                return ""
            yield None
        # [/task 5.5.3 peek]

    def accept(self, *tags: str) -> Read[str]:
        """Reads and returns the tag at the current position, or an empty string."""
        tag = yield from self.peek(*tags)
        return self.take(len(tag))

    def accept_end(self, tag: str) -> Read[None]:
        """Reads an end tag if there is one; the output's end may cut it off."""
        if (yield from self.accept(tag)) == "" and tag.startswith(self.buffer):
            self.take(len(self.buffer))

    def read_until(self, tags: tuple[str, ...], invalid: str) -> Read[str]:
        """Reads the text before the first of several tags.

        Raises:
            MalformedCallError: the text has a character from `invalid`, or the output ended.
        """
        while True:
            found = [index for tag in tags if (index := self.buffer.find(tag)) >= 0]
            text = self.buffer[: min(found, default=len(self.buffer))]
            if any(character in text for character in invalid):
                raise MalformedCallError
            if found:
                return self.take(len(text))
            if self.has_ended:
                raise MalformedCallError
            yield None


Function = Mapping[str, Any]  # function tool in OpenAI's format: name, description, parameters
Functions = Mapping[str, Function]  # by name

# Lark expressions for a vocabulary's special tokens, by token text.
SpecialTokens = Mapping[str, str]

ANY_TEXT = r"/(.|\n)*/"


@dataclass(frozen=True)
class CallGrammar:
    lark: str  # Lark rules, `start` included; `@name` refers to a schema
    schemas: Mapping[str, Any] = field(default_factory=dict)  # JSON schemas by name


@dataclass(frozen=True)
class ToolCallRules:
    functions: Sequence[Function]
    # "required" for calls only; "auto" for text, calls or both; "structured" for calls, or output
    # that matches `@response`.
    choice: Literal["required", "auto", "structured"]
    parallel: bool  # whether several calls are allowed
    special_tokens: SpecialTokens


class ToolCallFormat(ABC):
    name: str  # vLLM's name for the format's parser
    tags: tuple[str, ...]  # strings that start a call anywhere in the content
    # Strings that start a call only at the beginning of the content.
    first_tags: tuple[str, ...] = ()
    # Tag and text after it that start a call even inside the reasoning; None if none do.
    reasoning_tags: tuple[str, str] | None = None

    @abstractmethod
    def parse(self, source: TextSource, functions: Functions) -> Events:
        """Parses calls that start with a tag at the current position.

        Yields events, and `None` to wait for more text. Returns after the last call.

        Raises:
            MalformedCallError: the text is not a call, or the output ended inside one.
        """

    @abstractmethod
    def grammar(self, rules: ToolCallRules) -> CallGrammar:
        """Builds the grammar for output with calls."""

    def new_call_id(self) -> str:
        """Generates a call id that the chat template accepts."""
        return f"call_{uuid.uuid4().hex[:24]}"

    def valid_call_id(self, call_id: str) -> str:
        """Converts another server's call id to one that the chat template accepts."""
        return call_id


def tagged_grammar(rules: ToolCallRules, opening: str, rest: str, separator: str) -> str:
    """Returns the `start` rule and helper rules for calls that start with a tag.

    Rule `calls` is the output after the first tag.

    Args:
        rest: name of the rule for a call after its tag.
        separator: text between two calls; not used with the choice "auto", which allows any text.
    """
    first = tag(opening, rules.special_tokens)
    between = f"{literal(separator)} " if separator else ""
    more = f" ({between}{first} {rest})*" if rules.parallel else ""
    if rules.choice != "auto":
        response = " | @response" if rules.choice == "structured" else ""
        return f"start: {first} calls{response}\ncalls: {rest}{more}\n"
    more = f"(opened {rest})*" if rules.parallel else ""
    return (
        f"start: opened calls | last\ncalls: {rest} {more} last\n"
        + text_until("opened", opening, rules.special_tokens)
        + text_without("last", opening, rules.special_tokens)
    )


def literal(text: str) -> str:
    """Quotes a string for Lark, whose string literals use JSON's syntax."""
    return json.dumps(text, ensure_ascii=False)


def tag(text: str, special_tokens: SpecialTokens) -> str:
    """Returns the Lark expression for a tag: its special token, else its text."""
    return special_tokens.get(text) or literal(text)


def text_until(rule: str, end: str, special_tokens: SpecialTokens) -> str:
    """Returns a Lark rule named `rule` for text without `end`, followed by `end`."""
    if end in special_tokens:
        return f"{rule}: {ANY_TEXT} {special_tokens[end]}\n"
    return f"{rule}[lazy]: {ANY_TEXT} {literal(end)}\n"


def text_without(rule: str, end: str, special_tokens: SpecialTokens) -> str:
    """Returns a Lark rule named `rule` for text without `end`."""
    if end in special_tokens:
        return f"{rule}: {ANY_TEXT}\n"
    escaped = re.sub(r"[\\/.*+?()\[\]{}|^$]", r"\\\g<0>", end)
    contains = f"(?s:.*){escaped}(?s:.*)"
    return f"{rule}: {rule.upper()}_TEXT\n{rule.upper()}_TEXT: /(?s:.*)/ & ~/{contains}/\n"


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
