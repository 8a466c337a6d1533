"""Grammar bitmasks of a step: allowed tokens per row.

A bitmask is a function of the output and draft tokens alone. It is therefore batch invariant and
independent of prefix cache hits, preemption and rejected draft tokens.

Bitmasks are packed in llguidance's layout: bit i of a row is token i.

Some checkpoints use ordinary text as end tokens, which a grammar may allow in mid-output. The
engine would end the output there, so they are masked until the output is complete.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import mlx.core as mx

from ..scheduling.request import EngineRequest


class GrammarRow(Protocol):
    """The properties of an output position that determine its bitmask."""

    @property
    def request(self) -> EngineRequest:
        """The request."""

    @property
    def draft_tokens(self) -> tuple[int, ...]:
        """Unverified tokens before this position."""


def apply_grammar_bitmask(logits: mx.array, rows: Sequence[GrammarRow]) -> mx.array:
    """Masks the tokens that a row's grammar does not allow.

    Args:
        logits: R×V, float32.
        rows: R. Precondition: the rows of a request are adjacent, each with the previous row's
            draft tokens plus one; a single row may have any number.
    """
    constrained = [index for index, row in enumerate(rows) if row.request.grammar is not None]
    if not constrained:
        return logits
    width = logits.shape[-1]
    packed = mx.array(_packed_masks([rows[index] for index in constrained], width))  # R'×⌈V / 32⌉
    bits = (packed[:, :, None] >> mx.arange(32)) & 1
    allowed = bits.reshape(len(constrained), -1)[:, :width].astype(mx.bool_)  # R'×V
    masked = mx.where(allowed, logits[mx.array(constrained)], -mx.inf)
    if len(constrained) == len(rows):
        return masked
    result = mx.array(logits)  # a copy: the argument is not modified
    result[mx.array(constrained)] = masked
    return result


def _packed_masks(rows: Sequence[GrammarRow], width: int) -> Any:
    """Computes the bitmasks of constrained rows: R'×⌈V / 32⌉, int32."""
    import numpy as np
    from llguidance.numpy import (
        fill_next_token_bitmask_par,
        fill_next_token_bitmask_par_with_draft_tokens,
    )

    plain: list[tuple[Any, int]] = []
    drafted: list[tuple[Any, int, list[int]]] = []
    mask_indices: list[int] = []  # by row
    num_masks = 0
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        if following is not None and following.request is row.request:
            continue  # the last row of a request has all its draft tokens
        matcher, draft_tokens = row.request.grammar.matcher, list(row.draft_tokens)
        num_rows = sum(other.request is row.request for other in rows)
        if draft_tokens:
            # On a copy: exceeding a limit after a rejected draft token must not affect the matcher.
            drafted.append((matcher.deep_copy(), num_masks, draft_tokens))
        else:
            plain.append((matcher, num_masks))
        first = num_masks + len(draft_tokens) + 1 - num_rows
        mask_indices += range(first, first + num_rows)
        num_masks += len(draft_tokens) + 1
    words = -(-max(width, _vocab_size(rows)) // 32)
    masks = np.zeros((num_masks, words), np.int32)
    if plain:
        fill_next_token_bitmask_par(_executor(), plain, masks)
    if drafted:
        fill_next_token_bitmask_par_with_draft_tokens(_executor(), drafted, masks)
    row_masks = masks[mask_indices]
    for row, mask in zip(rows, row_masks, strict=True):
        _mask_early_eos(row, mask.view(np.uint32))
    return row_masks[:, : -(-width // 32)]


def _mask_early_eos(row: GrammarRow, mask: Any) -> None:
    """Clears textual end tokens of an incomplete output, unless nothing else is allowed."""
    grammar = row.request.grammar
    ends = [token for token in grammar.text_eos_token_ids if mask[token // 32] >> (token % 32) & 1]
    if not ends or grammar.is_complete_after(row.draft_tokens):
        return
    others = mask.copy()
    for token in ends:
        others[token // 32] &= ~(1 << (token % 32)) & 0xFFFFFFFF
    if others.any():
        mask[:] = others


def _vocab_size(rows: Sequence[GrammarRow]) -> int:
    """V of the target, for which the grammars were compiled; a draft model's may be smaller."""
    return max(row.request.grammar.vocab_size for row in rows)


@cache
def _executor() -> Any:
    """The thread pool of llguidance, idle between steps."""
    from llguidance import LLExecutor

    return LLExecutor(1)
