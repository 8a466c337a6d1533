"""Which tokens grammars allow, for all rows of a step at once.

A mask is a function of the answer's tokens and of guesses after them, and of nothing else. So it is
the same alone and in a batch, with a hit in the prefix cache and after preemption, and a token that
a draft model guesses wrongly leaves no trace.

Masks are packed, as llguidance writes them: bit i of a row is token i.

An end token that is text, too, as some folders have it, could stand in the middle of an answer as
far as the grammar knows. The engine would end the answer there, so it is allowed only where the
answer is whole.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import mlx.core as mx

from ..scheduling.request import EngineRequest


class GrammarRow(Protocol):
    """A place in an answer: what a mask depends on."""

    @property
    def request(self) -> EngineRequest:
        """The answer's request."""

    @property
    def draft_tokens(self) -> tuple[int, ...]:
        """Tokens before this place that are not part of the answer yet."""


def apply_grammar_bitmask(logits: mx.array, rows: Sequence[GrammarRow]) -> mx.array:
    """−inf where a row's grammar does not allow a token.

    Args:
        logits: R×V, in float32.
        rows: R. Those of one request follow one another, and each has the guesses of the one
            before it and one more, or it is the only one.
    """
    kept = [index for index, row in enumerate(rows) if row.request.grammar is not None]
    if not kept:
        return logits
    width = logits.shape[-1]
    packed = mx.array(_packed_masks([rows[index] for index in kept], width))  # R'×⌈V / 32⌉
    bits = (packed[:, :, None] >> mx.arange(32)) & 1
    allowed = bits.reshape(len(kept), -1)[:, :width].astype(mx.bool_)  # R'×V
    chosen = mx.where(allowed, logits[mx.array(kept)], -mx.inf)
    if len(kept) == len(rows):
        return chosen
    result = mx.array(logits)  # a copy: the caller's is not changed
    result[mx.array(kept)] = chosen
    return result


def _packed_masks(rows: Sequence[GrammarRow], width: int) -> Any:
    """The masks of rows whose requests have a grammar: R'×⌈V / 32⌉, int32."""
    import numpy as np
    from llguidance.numpy import (
        fill_next_token_bitmask_par,
        fill_next_token_bitmask_par_with_draft_tokens,
    )

    plain: list[tuple[Any, int]] = []
    guessed: list[tuple[Any, int, list[int]]] = []
    places: list[int] = []  # each row's, among the masks
    num_masks = 0
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        if following is not None and following.request is row.request:
            continue  # its last row has all guesses
        matcher, draft_tokens = row.request.grammar.matcher, list(row.draft_tokens)
        num_own = sum(one.request is row.request for one in rows)
        if draft_tokens:
            # On a copy: a limit that is met behind a wrong guess is nothing to the answer.
            guessed.append((matcher.deep_copy(), num_masks, draft_tokens))
        else:
            plain.append((matcher, num_masks))
        first = num_masks + len(draft_tokens) + 1 - num_own
        places += range(first, first + num_own)
        num_masks += len(draft_tokens) + 1
    words = -(-max(width, _vocab_size(rows)) // 32)
    masks = np.zeros((num_masks, words), np.int32)
    if plain:
        fill_next_token_bitmask_par(_executor(), plain, masks)
    if guessed:
        fill_next_token_bitmask_par_with_draft_tokens(_executor(), guessed, masks)
    chosen = masks[places]
    for row, mask in zip(rows, chosen, strict=True):
        _mask_early_eos(row, mask.view(np.uint32))
    return chosen[:, : -(-width // 32)]


def _mask_early_eos(row: GrammarRow, mask: Any) -> None:
    """Takes end tokens that are text out of a mask; if nothing is left then, it stays as it is."""
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
    """V of the target, for which the grammars were compiled; a draft model may have less."""
    return max(row.request.grammar.vocab_size for row in rows)


@cache
def _executor() -> Any:
    """llguidance's threads, which are idle between steps."""
    from llguidance import LLExecutor

    return LLExecutor(1)
