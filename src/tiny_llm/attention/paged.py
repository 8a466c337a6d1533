"""Paged attention: keys and values are located through a block table.

Key j of sequence b is row j % page_size of page block_table[b, j // page_size]. Each function has
two implementations: a reference in plain MLX that gathers a sequence's pages into one array, and a
kernel that walks the block table without gathering. The reference is the kernel's test oracle and
the fallback where the extension is not built.

Additional shape letters: P physical pages, T tokens of all sequences together.
"""

from collections.abc import Sequence
from typing import Literal

import mlx.core as mx

from .. import kernels
from .dense import is_none_or_causal, scaled_dot_product_attention_grouped

Integers = Sequence[int] | mx.array
BlockTable = Sequence[Sequence[int]] | mx.array


def paged_attention(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    block_table: BlockTable,
    context_lens: Integers,
    page_size: int,
    scale: float | None = None,
    mask: Literal["causal"] | None = "causal",
) -> mx.array:
    """Grouped-query attention of L queries for each of B sequences with paged keys and values.

    With the extension, the result has the same bits as `flash_attention` on contiguous keys,
    regardless of the page size and of page placement.

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention" (2023).

    Args:
        query: B×H_q×L×D, float32, float16 or bfloat16, D at most 256.
        key_pages: P×H×page_size×D of the same dtype.
        value_pages: P×H×page_size×D of the same dtype.
        block_table: B×max_pages int32: each sequence's pages in order, padded with −1. The padding
            is not read.
        context_lens: B int32: the number of keys of each sequence, including the new ones.
        page_size: tokens per page.
        scale: factor for the scores; 1/√D if None.
        mask: "causal" (query i of sequence b attends to keys j ≤ i + context_lens[b] − L), or None
            (all keys).

    Returns:
        B×H_q×L×D in the dtype of `query`. A row with no visible key is zero.

    Raises:
        ValueError: an unsupported shape, dtype, page size or mask; a length or page id, given as a
            Python number, out of range. Array values are not checked: lengths are clamped, and a
            page id out of range gives NaN.
    """
    if not is_none_or_causal(mask):
        raise ValueError(f'[paged_attention] expected mask None or "causal", got {mask!r}.')
    _check_pages("paged_attention", key_pages, page_size, block_table, context_lens)
    table, lengths = as_int32(block_table), as_int32(context_lens)
    if not kernels.is_built():
        return paged_attention_reference(
            query, key_pages, value_pages, table, lengths, page_size, scale, mask
        )
    return kernels.paged_attention(
        query, key_pages, value_pages, table, lengths, scale, mask == "causal"
    )


def paged_attention_reference(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    block_table: mx.array,
    context_lens: mx.array,
    page_size: int,
    scale: float | None = None,
    mask: Literal["causal"] | None = "causal",
) -> mx.array:
    """Reference for `paged_attention`: plain MLX in float32, one sequence at a time."""
    # [task 3.2.2 reference]
    rows = [
        _attend_sequence(
            query[b], key_pages, value_pages, block_table[b], context_len, page_size, scale, mask
        )
        for b, context_len in enumerate(_to_list(context_lens))
    ]
    return mx.stack(rows) if rows else query
    # [/task 3.2.2 reference]


def paged_attention_varlen(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    cu_seqlens_q: Integers,
    context_lens: Integers,
    block_table: BlockTable,
    page_size: int,
    scale: float | None = None,
) -> mx.array:
    """Causal `paged_attention` over a ragged batch: a different number of queries per sequence.

    Sequence s has queries cu_seqlens_q[s] to cu_seqlens_q[s + 1] − 1, the last of its
    context_lens[s] tokens. One call can mix decoding sequences (one query each) with prefill chunks
    without padding.

        cu_seqlens_q    0 1 2       7       two decoding sequences and a chunk of five
        query           a b c c c c c

    Args:
        query: T×H_q×D, the queries of all sequences, concatenated.
        key_pages, value_pages, context_lens, block_table, page_size, scale: as `paged_attention`.
        cu_seqlens_q: B+1 int32, ascending from 0 to T.

    Returns:
        T×H_q×D in the dtype of `query`.

    Raises:
        ValueError: as `paged_attention`; `cu_seqlens_q`, given as Python numbers, does not ascend
            from 0 to T.
    """
    name = "paged_attention_varlen"
    _check_pages(name, key_pages, page_size, block_table, context_lens)
    if not isinstance(cu_seqlens_q, mx.array):
        ends = list(cu_seqlens_q)
        if ends != sorted(ends) or ends[:1] != [0] or ends[-1] != query.shape[0]:
            raise ValueError(
                f"[{name}] expected cu_seqlens_q ascending from 0 to {query.shape[0]}, the number "
                f"of queries, got {ends}."
            )
    ends_array, lengths, table = (
        as_int32(cu_seqlens_q),
        as_int32(context_lens),
        as_int32(block_table),
    )
    if not kernels.is_built():
        return paged_attention_varlen_reference(
            query, key_pages, value_pages, ends_array, lengths, table, page_size, scale
        )
    return kernels.paged_attention_varlen(
        query, key_pages, value_pages, ends_array, lengths, table, scale
    )


def paged_attention_varlen_reference(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    cu_seqlens_q: mx.array,
    context_lens: mx.array,
    block_table: mx.array,
    page_size: int,
    scale: float | None = None,
) -> mx.array:
    """Reference for `paged_attention_varlen`: plain MLX in float32, one sequence at a time."""
    # [task 3.3.1 reference]
    ends = _to_list(cu_seqlens_q)
    rows = []
    for s, context_len in enumerate(_to_list(context_lens)):
        chunk = query[ends[s] : ends[s + 1]].swapaxes(0, 1)  # H_q×L×D
        attended = _attend_sequence(
            chunk, key_pages, value_pages, block_table[s], context_len, page_size, scale, "causal"
        )
        rows.append(attended.swapaxes(0, 1))
    return mx.concatenate(rows) if rows else query
    # [/task 3.3.1 reference]


def gather_pages(pages: mx.array, page_ids: mx.array, length: int) -> mx.array:
    """Copies a sequence's first `length` tokens to one array: P×H×page_size×D -> H×length×D."""
    # [task 3.1.3 pages]
    _, H, _, D = pages.shape
    gathered = pages[page_ids[: -(-length // pages.shape[2])]]  # n×H×page_size×D
    return gathered.swapaxes(0, 1).reshape(H, -1, D)[:, :length]
    # [/task 3.1.3 pages]


def _attend_sequence(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    page_ids: mx.array,
    context_len: int,
    page_size: int,
    scale: float | None,
    mask: Literal["causal"] | None,
) -> mx.array:
    """Attends to one sequence's gathered keys and values: H_q×L×D -> H_q×L×D."""
    # [task 3.2.2 one]
    L = query.shape[1]
    hidden = 0  # queries before the first key: a softmax over no keys would be NaN
    if context_len == 0:
        hidden = L
    elif mask == "causal":
        hidden = max(0, L - context_len)
    zeros = mx.zeros_like(query[:, :hidden])
    if hidden == L:
        return zeros
    attended = scaled_dot_product_attention_grouped(
        query[:, hidden:].astype(mx.float32),
        gather_pages(key_pages, page_ids, context_len).astype(mx.float32),
        gather_pages(value_pages, page_ids, context_len).astype(mx.float32),
        scale,
        mask,
    )
    return mx.concatenate([zeros, attended.astype(query.dtype)], axis=1)
    # [/task 3.2.2 one]


def _check_pages(
    name: str,
    key_pages: mx.array,
    page_size: int,
    block_table: BlockTable,
    context_lens: Integers,
) -> None:
    """Rejects bad arguments that the kernel cannot check, or not in time to raise."""
    if key_pages.ndim == 4 and key_pages.shape[2] != page_size:
        raise ValueError(
            f"[{name}] expected page_size={page_size} tokens per page, got shape {key_pages.shape}."
        )
    if isinstance(context_lens, mx.array) or isinstance(block_table, mx.array):
        return
    for row, length in zip(block_table, context_lens, strict=False):
        if not 0 <= length <= len(row) * page_size:
            raise ValueError(
                f"[{name}] expected context_lens from 0 to {len(row) * page_size}, the capacity of "
                f"a row of the block table, got {length}."
            )
        for page in row[: -(-length // page_size)]:
            if not 0 <= page < key_pages.shape[0]:
                raise ValueError(
                    f"[{name}] expected page ids from 0 to {key_pages.shape[0] - 1}, got {page}."
                )


def as_int32(numbers: Integers | BlockTable) -> mx.array:
    """Converts numbers, or rows of numbers, to an int32 array; returns an array unchanged."""
    return numbers if isinstance(numbers, mx.array) else mx.array(list(numbers), dtype=mx.int32)


def _to_list(array: mx.array) -> list[int]:
    return array.tolist()  # type: ignore[return-value]
