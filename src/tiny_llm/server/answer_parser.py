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

from .json_pieces import ObjectEnd, can_become_json

THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
# A call up to its arguments, if they are an object and come after the name.
HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')


@dataclass(frozen=True)
class Thought:
    """More of what the model thinks."""

    text: str


@dataclass(frozen=True)
class Said:
    """More of the answer."""

    text: str


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True)
class ToolCall:
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


Part = Thought | Said | ToolCall


class _State(StrEnum):
    BEGINNING = "beginning"
    THINKING = "thinking"
    ANSWERING = "answering"
    CALLING = "calling"
    ARGUMENTS = "arguments"  # of a call that is told in pieces
    CLOSING = "closing"  # after them


class AnswerParser:
    """Splits one answer.

    Args:
        may_think: whether the model has a thinking mode.
        in_thought: whether the prompt has opened the thoughts.
        may_call: whether tool calls are looked for.
        in_pieces: whether tool calls are told in pieces.
    """

    def __init__(self, may_think: bool, in_thought: bool, may_call: bool, in_pieces: bool = False):
        self._may_call = may_call
        self._in_pieces = in_pieces
        self._call = ToolCall("", "")  # the one that is told in pieces, so far
        self._begin_object()
        self._held = ""
        self._at_start = False  # of a part: white space before it is left out
        self._state = _State.ANSWERING
        if in_thought:
            self._enter(_State.THINKING)
        elif may_think:
            self._state = _State.BEGINNING

    @property
    def is_thinking(self) -> bool:
        """Whether the next text is a thought, as far as is known."""
        return self._state is _State.THINKING

    @property
    def is_answering(self) -> bool:
        """Whether the last text was a part of the answer itself."""
        is_before = self._state in (_State.BEGINNING, _State.THINKING)
        return not is_before and not self._at_start

    def feed(self, text: str) -> list[Part]:
        """Takes more text, and returns the parts that are certain."""
        is_plain = self._state is _State.ANSWERING and not (self._may_call or self._at_start)
        if is_plain and not self._held:  # most pieces: nothing has to be looked for
            return [Said(text)] if text else []
        self._held += text
        parts: list[Part] = []
        while self._advance(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        """The rest, when the answer has ended."""
        rest, self._held = self._held, ""
        if self._state is _State.CALLING:
            return [Said(CALL + rest)]
        if self._state is _State.THINKING:
            rest = rest.rstrip()
            return [Thought(rest)] if rest and not (self._at_start and not rest.strip()) else []
        if self._state is _State.CLOSING:
            rest = rest.strip().removeprefix("}").strip()
            rest = "" if CALL_END.startswith(rest) else rest
        return [Said(rest)] if rest else []

    def _enter(self, state: _State) -> None:
        self._state = state
        self._at_start = True

    def _advance(self, parts: list[Part]) -> bool:
        """One step; returns whether there may be another."""
        match self._state:
            case _State.BEGINNING:
                return self._begin()
            case _State.THINKING:
                return self._think(parts)
            case _State.ANSWERING:
                return self._answer(parts)
            case _State.CALLING:
                return self._begin_call(parts) or self._whole_call(parts)
            case _State.ARGUMENTS:
                return self._more_arguments(parts)
            case _State.CLOSING:
                return self._close_call()

    def _begin(self) -> bool:
        """Thoughts are only looked for at the very beginning."""
        text = self._held.lstrip()
        if text.startswith(THINK):
            self._held = text[len(THINK) :]
            self._enter(_State.THINKING)
        elif text and not THINK.startswith(text):
            self._state = _State.ANSWERING
        else:
            return False
        return True

    def _think(self, parts: list[Part]) -> bool:
        self._skip_space()
        thought, tag, rest = self._held.partition(THINK_END)
        if tag:
            self._held = rest
            if thought.rstrip():
                parts.append(Thought(thought.rstrip()))
            self._enter(_State.ANSWERING)
            return True
        self._emit(parts, Thought, THINK_END)
        return False

    def _answer(self, parts: list[Part]) -> bool:
        self._skip_space()
        if not self._may_call:
            if self._held:
                parts.append(Said(self._held))
            self._held = ""
            return False
        said, tag, rest = self._held.partition(CALL)
        if tag:
            self._held = rest
            if said.rstrip():
                parts.append(Said(said.rstrip()))
            self._state = _State.CALLING
            return True
        self._emit(parts, Said, CALL)
        return False

    def _begin_object(self) -> None:
        """Gets ready for a call's text."""
        self._object = ObjectEnd()
        self._num_read = 0  # characters that it has read
        self._end: int | None = None  # of the object, in the text that is held back

    def _whole_call(self, parts: list[Part]) -> bool:
        end = self._end_of_object()
        if end is None:
            return False
        rest = self._held[end:].lstrip()
        if not rest.startswith(CALL_END):
            if CALL_END.startswith(rest):
                return False  # the tag is still to come
            call = None
        else:
            call = _tool_call(self._held[:end])
        self._begin_object()
        if call is None:  # it is text after all
            parts.append(Said(CALL + self._held[:end]))
            self._held = self._held[end:]
            self._state = _State.ANSWERING
            return True
        parts.append(call)
        self._held = rest[len(CALL_END) :]
        self._enter(_State.ANSWERING)
        return True

    def _end_of_object(self) -> int | None:
        """Where a call's object ends; 0 if the text begins with none, None while it is open."""
        if self._end is None:
            text = self._held.lstrip()
            if text and text[0] != "{":
                return 0
            if self._num_read == 0:
                self._num_read = len(self._held) - len(text)
            end = self._object.feed(self._held[self._num_read :])
            if end is not None:
                self._end = self._num_read + end
            self._num_read = len(self._held)
        return self._end

    # ---------------------------------------------------------------- calls in pieces

    def _begin_call(self, parts: list[Part]) -> bool:
        """Tells a call's name when its arguments begin."""
        head = HEAD.match(self._held) if self._in_pieces else None
        if head is None:
            return False
        try:
            name = json.loads(head[1])
        except ValueError:
            return False
        self._call = ToolCall(name, "")
        parts.append(self._call)
        self._held = self._held[head.end() :]
        self._begin_object()
        self._state = _State.ARGUMENTS
        return True

    def _more_arguments(self, parts: list[Part]) -> bool:
        """Tells more of the arguments, as long as they can become JSON; what cannot is text."""
        if not self._held:
            return False
        end = self._object.feed(self._held)
        more, self._held = self._held[:end], "" if end is None else self._held[end:]
        arguments = self._call.arguments + more
        if not can_become_json(arguments):
            self._begin_object()
            self._held = more + self._held
            self._state = _State.ANSWERING
            return True
        self._call = replace(self._call, arguments=arguments)
        parts.append(replace(self._call, arguments=more, is_new=False))
        if end is None:
            return False
        self._begin_object()
        self._state = _State.CLOSING
        return True

    def _close_call(self) -> bool:
        """Leaves out what is between the arguments and the closing tag, which is a brace."""
        _, tag, rest = self._held.partition(CALL_END)
        if not tag:
            return False
        self._held = rest
        self._enter(_State.ANSWERING)
        return True

    def _skip_space(self) -> None:
        if self._at_start:
            self._held = self._held.lstrip()
            self._at_start = not self._held

    def _emit(self, parts: list[Part], kind: type[Thought] | type[Said], tag: str) -> None:
        """Gives out what cannot be a part of a tag, or white space before it."""
        safe = self._held
        for length in range(min(len(tag) - 1, len(safe)), 0, -1):
            if safe.endswith(tag[:length]):
                safe = safe[:-length]
                break
        safe = safe.rstrip()
        if safe:
            parts.append(kind(safe))
            self._held = self._held[len(safe) :]


def _tool_call(text: str) -> ToolCall | None:
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
    return ToolCall(call["name"], arguments)
