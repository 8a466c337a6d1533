"""From an answer's text, as it comes, to its parts: thinking, the answer itself, tool calls.

A thinking model writes `<think>…</think>` before it answers; its chat template may have opened the
thoughts already, or closed them. Tool calls have the form that Qwen3 learnt from Hermes:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

Text that may be the beginning of a tag is held back until it is clear. A tool call is held back
until it is whole, because one that is cut off, or is not JSON, is text.
"""

import json
import uuid
from dataclasses import dataclass, field
from enum import StrEnum

THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"


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
    """A whole tool call; `arguments` is JSON."""

    name: str
    arguments: str
    id: str = field(default_factory=_new_call_id)


Part = Thought | Said | ToolCall


class _State(StrEnum):
    BEGINNING = "beginning"
    THINKING = "thinking"
    ANSWERING = "answering"
    CALLING = "calling"


class AnswerParser:
    """Splits one answer.

    Args:
        may_think: whether the model has a thinking mode.
        in_thought: whether the prompt has opened the thoughts.
        may_call: whether tool calls are looked for.
    """

    def __init__(self, may_think: bool, in_thought: bool, may_call: bool):
        self._may_call = may_call
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
        return self._state in (_State.ANSWERING, _State.CALLING) and not self._at_start

    def feed(self, text: str) -> list[Part]:
        """Takes more text, and returns the parts that are certain."""
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
                return self._call(parts)

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

    def _call(self, parts: list[Part]) -> bool:
        end = _end_of_json(self._held)
        if end is None:
            return False
        rest = self._held[end:].lstrip()
        if not rest.startswith(CALL_END):
            if CALL_END.startswith(rest):
                return False  # the tag is still to come
            call = None
        else:
            call = _tool_call(self._held[:end])
        if call is None:  # it is text after all
            parts.append(Said(CALL + self._held[:end]))
            self._held = self._held[end:]
            self._state = _State.ANSWERING
            return True
        parts.append(call)
        self._held = rest[len(CALL_END) :]
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


def _end_of_json(text: str) -> int | None:
    """Where the object that a text begins with ends; 0 if it begins with none.

    Returns:
        None while the object is not whole.
    """
    start = len(text) - len(text.lstrip())
    if start == len(text):
        return None
    if text[start] != "{":
        return 0
    depth, in_string, escaped = 0, False, False
    for place in range(start, len(text)):
        character = text[place]
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return place + 1
    return None


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
