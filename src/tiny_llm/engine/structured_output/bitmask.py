"""Grammar bitmasks: allowed tokens for each row of a step's logits.

A bitmask depends only on the grammar and on the output and draft tokens before its position. It is
therefore batch-invariant and independent of prefix cache hits, preemption and rejected draft
tokens. Bitmasks are packed in llguidance's layout: bit i of a row is token i.

Some checkpoints have EOS tokens that are ordinary text, which a grammar may allow in mid-output.
The engine would end the output there, so these EOS tokens are masked until the output is complete.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Protocol

import mlx.core as mx

from ..scheduling.request import EngineRequest


class GrammarRow(Protocol):
    """Properties of an output position that determine its bitmask."""

    @property
    def request(self) -> EngineRequest: ...
    @property
    def draft_tokens(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class MaskJob:
    """Bitmasks to compute for a request: before and after each draft token."""

    grammar: Any
    draft_tokens: tuple[int, ...]

    @property
    def num_masks(self) -> int:
        return len(self.draft_tokens) + 1


def apply_grammar_bitmask(logits: mx.array, rows: Sequence[GrammarRow]) -> mx.array:
    """Masks the tokens that each row's grammar does not allow.

    Args:
        logits: R×V, float32.
        rows: R output positions. Precondition: a request's rows are adjacent, and each has the
            previous row's draft tokens plus one more; a single row may have any number.
    """
    constrained = [index for index, row in enumerate(rows) if row.request.grammar is not None]
    if not constrained:
        return logits
    packed = mx.array(_packed_masks([rows[index] for index in constrained], logits.shape[-1]))
    # [task 5.4.2 mask]
    allowed = unpack_bitmask(packed, logits.shape[-1])  # R'×V, for R' constrained rows
    masked = mx.where(allowed, logits[mx.array(constrained)], -mx.inf)
    if len(constrained) == len(rows):
        return masked
    result = mx.array(logits)  # a copy: the argument is not modified
    result[mx.array(constrained)] = masked
    return result
    # [/task 5.4.2 mask]


def unpack_bitmask(packed: mx.array, width: int) -> mx.array:
    """Unpacks bitmasks to booleans.

    Args:
        packed: N×⌈V / 32⌉, int32; bit i of a row is bit i mod 32 of its element i // 32.
        width: V.

    Returns:
        N×V, bool.
    """
    # [task 5.4.2 bits]
    bits = (packed[:, :, None] >> mx.arange(32)) & 1  # N×⌈V / 32⌉×32
    return bits.reshape(packed.shape[0], -1)[:, :width].astype(mx.bool_)
    # [/task 5.4.2 bits]


def plan_masks(rows: Sequence[GrammarRow]) -> tuple[list[MaskJob], list[int]]:
    """Plans the bitmasks to compute, with one job per request.

    Args:
        rows: constrained rows, see `apply_grammar_bitmask`.

    Returns:
        (one job per request, index of each row's bitmask among those of all jobs).
    """
    # [task 5.4.3 plan]
    jobs: list[MaskJob] = []
    mask_indices: list[int] = []
    num_masks = 0
    for request, group in groupby(rows, lambda row: row.request):
        *earlier, last = group  # the last row's draft tokens include those of the earlier rows
        jobs.append(MaskJob(request.grammar, last.draft_tokens))
        num_masks += jobs[-1].num_masks
        mask_indices += range(num_masks - len(earlier) - 1, num_masks)
    return jobs, mask_indices
    # [/task 5.4.3 plan]


def _packed_masks(rows: Sequence[GrammarRow], width: int) -> Any:
    """Computes bitmasks for the R' constrained rows: R'×⌈V / 32⌉, int32."""
    import numpy as np

    jobs, mask_indices = plan_masks(rows)
    # Grammars are compiled for the target's V, so masks have that width even if `width`, the draft
    # model's V, is smaller.
    words = -(-max(width, *(row.request.grammar.vocab_size for row in rows)) // 32)
    masks = np.zeros((sum(job.num_masks for job in jobs), words), np.int32)
    _fill_masks(jobs, masks)
    row_masks = masks[mask_indices]
    for row, mask in zip(rows, row_masks, strict=True):
        _mask_early_eos(row, mask.view(np.uint32))
    return row_masks[:, : -(-width // 32)]


def _fill_masks(jobs: Sequence[MaskJob], masks: Any) -> None:
    from llguidance.numpy import (
        fill_next_token_bitmask_par,
        fill_next_token_bitmask_par_with_draft_tokens,
    )

    plain: list[tuple[Any, int]] = []
    drafted: list[tuple[Any, int, list[int]]] = []
    first = 0
    for job in jobs:
        matcher = job.grammar.matcher
        if job.draft_tokens:
            # A copy: even a rejected draft token can leave the matcher in an error state for good.
            drafted.append((matcher.deep_copy(), first, list(job.draft_tokens)))
        else:
            plain.append((matcher, first))
        first += job.num_masks
    if plain:
        fill_next_token_bitmask_par(_executor(), plain, masks)
    if drafted:
        fill_next_token_bitmask_par_with_draft_tokens(_executor(), drafted, masks)


def _mask_early_eos(row: GrammarRow, mask: Any) -> None:
    """Masks EOS tokens that are ordinary text, unless the output is complete."""
    grammar = row.request.grammar
    ends = [
        token
        for token in grammar.non_special_eos_token_ids
        if mask[token // 32] >> (token % 32) & 1
    ]
    if not ends or grammar.is_complete_after(row.draft_tokens):
        return
    others = mask.copy()
    for token in ends:
        others[token // 32] &= ~(1 << (token % 32)) & 0xFFFFFFFF
    if others.any():  # a row must allow at least one token
        mask[:] = others


@cache
def _executor() -> Any:
    from llguidance import LLExecutor

    return LLExecutor(1)
