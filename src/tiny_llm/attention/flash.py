"""Flash attention: the extension's kernel, which does not materialize the scores.

Shape letters are those of `dense`.
"""

from collections.abc import Sequence

import mlx.core as mx

from .. import kernels
from .dense import Mask


def flash_attention(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    mask: Mask = None,
    context_lens: Sequence[int] | mx.array | None = None,
) -> mx.array:
    """Grouped-query attention in one kernel that does not materialize the scores.

    Reads keys and values tile by tile and rescales each output row when a later tile has a larger
    score (the online softmax). The result is exact, accumulated in float32 and batch-invariant:
    each row has the same bits regardless of the other rows and sequences in the call. A slice of a
    cache's buffer is read in place, not copied.

    Source: Dao et al., "FlashAttention" (2022); details in src/extensions/src/flash_attention.

    Args:
        query: N..×H_q×L×D, float32, float16 or bfloat16, D at most 512.
        key, value: N..×H×S×D of the same dtype.
        scale: factor for the scores; 1/√D if None.
        mask: None; "causal" (query i attends to keys j ≤ i + S − L); or an array broadcastable to
            N..×H_q×L×S, floating (added to the scores) or bool (True means visible).
        context_lens: number of valid keys per sequence, for a query B×H_q×L×D: B integers from 0
            to S, or None if all S are valid. Later keys are not read, and the causal condition
            becomes j ≤ i + context_lens[b] − L, so requests of different lengths can share a
            call. Values in an array are clamped to [0, S]; Python integers are checked.

    Returns:
        N..×H_q×L×D in the dtype of `query`. A row with no visible key is zero (a softmax
        would be NaN). The memory layout is N..×L×H_q×D, so swapping axes H_q and L and
        flattening the heads needs no copy.

    Raises:
        ValueError: an unsupported shape, dtype, mask or context length.
        UserError: the extension is not built.
    """
    if isinstance(mask, str) and mask != "causal":
        raise ValueError(
            f'[flash_attention] expected mask None, "causal" or an array, got "{mask}".'
        )
    _check_context_lens(context_lens, key)
    # [task 2.4.1 flash]
    causal = isinstance(mask, str)
    lengths = context_lens
    if lengths is not None and not isinstance(lengths, mx.array):
        lengths = mx.array(list(lengths), dtype=mx.int32)
    return kernels.flash_attention(
        query, key, value, scale, causal, None if isinstance(mask, str) else mask, lengths
    )
    # [/task 2.4.1 flash]


def _check_context_lens(context_lens: Sequence[int] | mx.array | None, key: mx.array) -> None:
    """Rejects lengths outside [0, S]; skips arrays, to avoid their evaluation."""
    if context_lens is None or isinstance(context_lens, mx.array) or key.ndim < 2:
        return
    S = key.shape[-2]
    if not all(0 <= length <= S for length in context_lens):
        raise ValueError(
            f"[flash_attention] expected context_lens from 0 to {S}, the number of keys, got "
            f"{list(context_lens)}."
        )
