"""ThinkingBudget: upper bound on reasoning tokens.

At the limit, only `</think>` is allowed, and the model continues with the content. The forced token
is a function of the output tokens alone, which preserves batch invariance, even with speculative
decoding and after preemption.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import mlx.core as mx

from ...models.tokenizer.chat_template import think_tags


@dataclass(frozen=True)
class ThinkingProgress:
    num_tokens: int  # reasoning tokens so far, excluding the delimiters
    is_open: bool  # whether the next token is a reasoning token


class ThinkingBudget:
    """Counts a request's reasoning tokens and forces `</think>` at the limit.

    Args:
        max_tokens: upper bound on reasoning tokens.
        start, end: token ids of `<think>` and `</think>`.
        in_thinking: whether the prompt ends inside a reasoning block.
    """

    def __init__(
        self, num_prompt_tokens: int, max_tokens: int, start: int, end: int, in_thinking: bool
    ) -> None:
        self._num_read = num_prompt_tokens
        self._progress = ThinkingProgress(0, in_thinking)
        self._max_tokens = max_tokens
        self._start = start
        self._end = end

    def forced_token(self, token_ids: Sequence[int], draft_tokens: Sequence[int]) -> int | None:
        """Returns the token forced at the next position, or None.

        Args:
            token_ids: the request's prompt and output, at least as long as in the last call.
            draft_tokens: unverified tokens before the position.
        """
        # [task 5.5.4 forced]
        new = token_ids[self._num_read :]
        self._num_read += len(new)
        self._progress = reduce(self._advance, new, self._progress)
        progress = reduce(self._advance, draft_tokens, self._progress)
        return self._end if progress.is_open and progress.num_tokens >= self._max_tokens else None
        # [/task 5.5.4 forced]

    def _advance(self, progress: ThinkingProgress, token: int) -> ThinkingProgress:
        """Returns the state after one more token."""
        # [task 5.5.4 count]
        if token == self._start:
            return ThinkingProgress(progress.num_tokens, True)
        if token == self._end or not progress.is_open:
            return ThinkingProgress(progress.num_tokens, False)
        return ThinkingProgress(progress.num_tokens + 1, True)
        # [/task 5.5.4 count]


def thinking_tokens(tokenizer: Any) -> tuple[int, int] | None:
    """Returns the token ids of the think tags, or None if missing."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    # `get_vocab` is only a fallback, because it builds a 20 MB dictionary.
    id_of = tokenizer.get_vocab().get if backend is None else backend.token_to_id
    start_tag, end_tag = think_tags(tokenizer)
    start, end = id_of(start_tag[: start_tag.index(">") + 1]), id_of(end_tag)
    return None if start is None or end is None else (start, end)


class BudgetRow(Protocol):
    """An output position, possibly with a forced token."""

    @property
    def forced_token(self) -> int | None: ...


def apply_thinking_budget(logits: mx.array, rows: Sequence[BudgetRow]) -> mx.array:
    """Masks all tokens except the forced one, in rows with a forced token.

    A row is unchanged if its grammar masks the forced token, because reasoning cannot end inside a
    multi-byte character. The token is then forced at the next position where the grammar allows it.

    Args:
        logits: R×V, float32, after the grammar bitmask.
    """
    width = logits.shape[-1]
    forced = {
        index: row.forced_token
        for index, row in enumerate(rows)
        if row.forced_token is not None and row.forced_token < width
    }
    if not forced:
        return logits
    indices = mx.array(list(forced))  # the R' rows with a forced token
    tokens = mx.array(list(forced.values()))[:, None]  # R'×1
    forced_rows = logits[indices]
    is_allowed = mx.take_along_axis(forced_rows, tokens, axis=1) > -mx.inf  # R'×1
    is_other = mx.arange(width)[None] != tokens  # R'×V
    result = mx.array(logits)  # a copy: the argument is not modified
    result[indices] = mx.where(is_allowed & is_other, -mx.inf, forced_rows)
    return result
