"""Compaction: shortens a conversation in rare, large steps.

Changing a message invalidates all later pages in the prefix cache. Therefore messages stay
unchanged until the conversation exceeds `limit`; one compaction then cuts it to `target`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UserError, check_int
from .models import Message
from .workspace import MIN_OUTPUT, truncate

DROPPED_NOTE = "[Earlier messages were dropped to save space.]"


@dataclass(frozen=True)
class Compaction:
    """Shortens long conversations; sizes are in characters of the JSON messages.

    Args:
        limit: maximum size of a conversation that is sent unchanged.
        target: maximum size after compaction, if the recent turns allow it; well below `limit`, so
            that compaction is rare.
        keep_turns: number of most recent turns to leave unchanged.
        result_chars: maximum length of an old tool result after compaction.
    """

    limit: int
    target: int
    keep_turns: int = 2
    result_chars: int = MIN_OUTPUT

    def __post_init__(self) -> None:
        check_int("keep_turns", self.keep_turns, 1)
        check_int("result_chars", self.result_chars, MIN_OUTPUT)
        if not 0 < self.target <= self.limit:
            raise UserError(
                f"the compaction target must be between 1 and the limit of {self.limit}, got "
                f"{self.target}."
            )

    def __call__(self, messages: Sequence[Message]) -> list[Message]:
        """Returns the messages to send, unchanged if their size is at most `limit`.

        Otherwise, shortens old tool results to `result_chars`, oldest first, until `target`
        is reached; if that is not enough, drops the oldest turns. Messages are never modified in
        place: a shortened message is a new dictionary.
        """
        # [task 7.3.3 compact]
        if num_chars(messages) <= self.limit:
            return list(messages)
        compacted = list(messages)
        for index in old_results(messages, self.keep_turns):
            if num_chars(compacted) <= self.target:
                break
            short = truncate(messages[index]["content"], self.result_chars)
            compacted[index] = {**messages[index], "content": short}
        return drop_turns(compacted, self.target, self.keep_turns)
        # [/task 7.3.3 compact]


def num_chars(messages: Sequence[Message]) -> int:
    """Number of characters of the messages as JSON; needs no tokenizer."""
    return sum(len(json.dumps(message, ensure_ascii=False)) for message in messages)


def turn_starts(messages: Sequence[Message]) -> list[int]:
    """Indices of the assistant messages, each of which begins a turn."""
    return [i for i, message in enumerate(messages) if message["role"] == "assistant"]


def old_results(messages: Sequence[Message], keep_turns: int) -> list[int]:
    """Indices of tool results before the last `keep_turns` turns, oldest first."""
    # [task 7.3.1 old]
    recent = turn_starts(messages)[-keep_turns:]
    end = recent[0] if recent else 0
    return [i for i, message in enumerate(messages[:end]) if message["role"] == "tool"]
    # [/task 7.3.1 old]


def drop_turns(messages: Sequence[Message], target: int, keep_turns: int) -> list[Message]:
    """Drops as few old turns as `target` requires, never the last `keep_turns`.

    A turn is dropped with its tool results: most servers reject a result without its call, or a
    call without its result. Messages before the first turn remain, followed by the user message
    `DROPPED_NOTE`, which is added only once across compactions and counts towards `target`.
    Returns the messages unchanged if no turn is dropped.
    """
    # [task 7.3.2 drop]
    starts = turn_starts(messages)
    if num_chars(messages) <= target or len(starts) <= keep_turns:
        return list(messages)
    head = list(messages[: starts[0]])
    if head[-1]["content"] != DROPPED_NOTE:
        head.append({"role": "user", "content": DROPPED_NOTE})
    for start in starts[1 : len(starts) - keep_turns + 1]:
        shorter = [*head, *messages[start:]]
        if num_chars(shorter) <= target:
            break
    return shorter
    # [/task 7.3.2 drop]
