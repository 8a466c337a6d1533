"""A bound on what a model thinks before it answers.

When the thoughts have as many tokens as they may have, `</think>` is the only token that can come
next, and the model goes on to its answer. What must come next is a function of the answer's tokens
alone, so a bounded answer is the same alone and in a batch, with guesses and after a preemption.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import mlx.core as mx

from .request import EngineRequest

START, END = "<think>", "</think>"


@dataclass(frozen=True)
class Thoughts:
    """How far the thoughts of an answer have come.

    Attributes:
        num_tokens: that they have, without the two that enclose them.
        is_open: whether the next token belongs to them.
    """

    num_tokens: int
    is_open: bool


class ThinkingBudget:
    """Says when the thoughts of an answer must end.

    Args:
        request: its tokens are read as they are added.
        most: tokens that the thoughts may have.
        start, end: the tokens around them.
        in_thought: whether the prompt has opened them.
    """

    def __init__(
        self, request: EngineRequest, most: int, start: int, end: int, in_thought: bool
    ) -> None:
        self._token_ids = request.token_ids  # of prompt and answer; the list grows
        self._num_read = request.num_prompt_tokens
        self._thoughts = Thoughts(0, in_thought)
        self._most = most
        self._start = start
        self._end = end

    def forced_token(self, guesses: Sequence[int]) -> int | None:
        """The token that must follow the answer and `guesses`; None if the model may choose."""
        new = self._token_ids[self._num_read :]
        self._num_read += len(new)
        self._thoughts = reduce(self._after, new, self._thoughts)
        thoughts = reduce(self._after, guesses, self._thoughts)
        return self._end if thoughts.is_open and thoughts.num_tokens >= self._most else None

    def _after(self, thoughts: Thoughts, token: int) -> Thoughts:
        if token == self._start:
            return Thoughts(thoughts.num_tokens, True)
        if token == self._end or not thoughts.is_open:
            return Thoughts(thoughts.num_tokens, False)
        return Thoughts(thoughts.num_tokens + 1, True)


def thinking_tokens(tokenizer: Any) -> tuple[int, int] | None:
    """The tokens around a model's thoughts; None if its vocabulary has none, and it cannot think.

    Args:
        tokenizer: of the model.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    # A dictionary of all tokens takes 20 MB.
    id_of = tokenizer.get_vocab().get if backend is None else backend.token_to_id
    start, end = id_of(START), id_of(END)
    return None if start is None or end is None else (start, end)


class BoundedPlace(Protocol):
    """A place in an answer whose token may be forced."""

    @property
    def forced_token(self) -> int | None:
        """See `ThinkingBudget.forced_token`."""


def with_forced_tokens(logits: mx.array, rows: Sequence[BoundedPlace]) -> mx.array:
    """−inf for every token but the forced one, in rows that have one.

    A grammar may forbid it: in the middle of a character, thoughts cannot end. Such a row stays as
    it is, and its next one is forced.

    Args:
        logits: R×V, in float32, −inf where a grammar does not allow a token.
        rows: R.
    """
    width = logits.shape[-1]
    forced = {
        index: row.forced_token
        for index, row in enumerate(rows)
        if row.forced_token is not None and row.forced_token < width
    }
    if not forced:
        return logits
    places = mx.array(list(forced))  # R'
    tokens = mx.array(list(forced.values()))[:, None]  # R'×1
    own = logits[places]
    is_allowed = mx.take_along_axis(own, tokens, axis=1) > -mx.inf  # R'×1
    is_other = mx.arange(width)[None] != tokens  # R'×V
    result = mx.array(logits)  # a copy: the caller's is not changed
    result[places] = mx.where(is_allowed & is_other, -mx.inf, own)
    return result
