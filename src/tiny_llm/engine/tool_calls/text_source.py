"""TextSource: streamed text for generators that parse tool calls.

A parser is a generator that yields a call's events, and `None` to wait for more text. Its code thus
reads like a parser for complete text.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

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
