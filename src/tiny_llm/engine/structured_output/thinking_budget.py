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

from ..scheduling.request import EngineRequest

THINK_START, THINK_END = "<think>", "</think>"


@dataclass(frozen=True)
class ThinkingProgress:
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
        max_tokens: tokens that the thoughts may have.
        start, end: the tokens around them.
        in_thinking: whether the prompt has opened them.
    """

    def __init__(
        self, request: EngineRequest, max_tokens: int, start: int, end: int, in_thinking: bool
    ) -> None:
        self._token_ids = request.token_ids  # of prompt and answer; the list grows
        self._num_read = request.num_prompt_tokens
        self._progress = ThinkingProgress(0, in_thinking)
        self._max_tokens = max_tokens
        self._start = start
        self._end = end

    def forced_token(self, draft_tokens: Sequence[int]) -> int | None:
        """The token forced after the output and `draft_tokens`; None if the model may choose."""
        new = self._token_ids[self._num_read :]
        self._num_read += len(new)
        self._progress = reduce(self._advance, new, self._progress)
        progress = reduce(self._advance, draft_tokens, self._progress)
        return self._end if progress.is_open and progress.num_tokens >= self._max_tokens else None

    def _advance(self, progress: ThinkingProgress, token: int) -> ThinkingProgress:
        if token == self._start:
            return ThinkingProgress(progress.num_tokens, True)
        if token == self._end or not progress.is_open:
            return ThinkingProgress(progress.num_tokens, False)
        return ThinkingProgress(progress.num_tokens + 1, True)


def thinking_tokens(tokenizer: Any) -> tuple[int, int] | None:
    """The tokens around a model's thoughts; None if its vocabulary has none, and it cannot think.

    Args:
        tokenizer: of the model.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    # A dictionary of all tokens takes 20 MB.
    id_of = tokenizer.get_vocab().get if backend is None else backend.token_to_id
    start, end = id_of(THINK_START), id_of(THINK_END)
    return None if start is None or end is None else (start, end)


class BudgetRow(Protocol):
    """A place in an answer whose token may be forced."""

    @property
    def forced_token(self) -> int | None:
        """See `ThinkingBudget.forced_token`."""


def apply_thinking_budget(logits: mx.array, rows: Sequence[BudgetRow]) -> mx.array:
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
