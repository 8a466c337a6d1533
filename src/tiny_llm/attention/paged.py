"""Attention to keys and values in pages: the block table says which page holds which tokens.

Key j of sequence b is row j % page_size of page block_table[b, j // page_size]. Each function has
two forms: the readable one gathers a sequence's pages into one array and attends to that, in plain
MLX; the fast one is a kernel that walks the block table and gathers nothing. The first is the
oracle of the second, and what runs where the extension was not built.

Besides the course's letters, P is the number of physical pages, and T the number of tokens of all
sequences together.
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
    """Grouped attention of L queries for each of B sequences, whose keys are in pages.

    Through the extension the result has the bits of `flash_attention` on the same keys in one
    buffer, whatever the page size and wherever the pages are.

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention" (2023).

    Args:
        query: B×H_q×L×D, float32, float16 or bfloat16, D at most 256.
        key_pages: P×H×page_size×D of the same dtype.
        value_pages: P×H×page_size×D of the same dtype.
        block_table: B×max_pages int32: the pages of each sequence, in order. What is beyond its
            last page is not read; −1 fills it.
        context_lens: B int32: how many keys each sequence has, the new ones included.
        page_size: tokens a page holds.
        scale: multiplies the scores; 1/√D if None.
        mask: "causal", under which query i of sequence b sees keys j ≤ i + context_lens[b] − L; or
            None, under which it sees them all.

    Returns:
        B×H_q×L×D in the dtype of `query`. A row that may see no key is zero.

    Raises:
        ValueError: shapes, dtypes, a page size or a mask that are not as above; lengths or pages,
            given as Python numbers, that the pool does not have. The numbers of an array are not
            checked: lengths are clamped, and a page that does not exist gives NaN.
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
    """`paged_attention` in plain MLX, one sequence after the other, in float32."""
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
    """`paged_attention`, causal, for sequences with different numbers of queries: a ragged batch.

    Sequence s has queries cu_seqlens_q[s] to cu_seqlens_q[s + 1] − 1, the last of its
    context_lens[s] tokens. So one call serves sequences that decode, with one query each, and
    sequences that are being prefilled, with a chunk of the prompt. No query is padding.

        cu_seqlens_q    0 1 2       7       two that decode, and a chunk of five
        query           a b c c c c c

    Args:
        query: T×H_q×D, the queries of all sequences one after the other.
        key_pages, value_pages, context_lens, block_table, page_size, scale: as `paged_attention`.
        cu_seqlens_q: B+1 int32, ascending from 0 to T.

    Returns:
        T×H_q×D in the dtype of `query`.

    Raises:
        ValueError: as `paged_attention`; `cu_seqlens_q`, given as Python numbers, that does not
            ascend from 0 to T.
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
    """`paged_attention_varlen` in plain MLX, one sequence after the other, in float32."""
    # [task 3.3.1 reference]
    ends = _to_list(cu_seqlens_q)
    rows = []
    for s, context_len in enumerate(_to_list(context_lens)):
        own = query[ends[s] : ends[s + 1]].swapaxes(0, 1)  # H_q×L×D
        attended = _attend_sequence(
            own, key_pages, value_pages, block_table[s], context_len, page_size, scale, "causal"
        )
        rows.append(attended.swapaxes(0, 1))
    return mx.concatenate(rows) if rows else query
    # [/task 3.3.1 reference]


def gather_pages(pages: mx.array, page_ids: mx.array, length: int) -> mx.array:
    """The first `length` tokens of a sequence in one array: P×H×page_size×D -> H×length×D."""
    # [task 3.1.3 pages]
    _, H, _, D = pages.shape
    own = pages[page_ids[: -(-length // pages.shape[2])]]  # n×H×page_size×D
    return own.swapaxes(0, 1).reshape(H, -1, D)[:, :length]
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
    """One sequence, H_q×L×D: gathers its keys and values and attends to them."""
    # [task 3.2.2 one]
    L = query.shape[1]
    hidden = 0  # queries before the first key; a softmax over nothing is not a number
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
    """Refuses what the kernel cannot check, or only when it is too late to raise."""
    if key_pages.ndim == 4 and key_pages.shape[2] != page_size:
        raise ValueError(
            f"[{name}] expected pages of {page_size} tokens, the page_size given, got shape "
            f"{key_pages.shape}."
        )
    if isinstance(context_lens, mx.array) or isinstance(block_table, mx.array):
        return
    for row, length in zip(block_table, context_lens, strict=False):
        if not 0 <= length <= len(row) * page_size:
            raise ValueError(
                f"[{name}] expected context_lens from 0 to {len(row) * page_size}, what a row of "
                f"the block table has room for, got {length}."
            )
        for page in row[: -(-length // page_size)]:
            if not 0 <= page < key_pages.shape[0]:
                raise ValueError(
                    f"[{name}] expected page ids from 0 to {key_pages.shape[0] - 1}, got {page}."
                )


def as_int32(numbers: Integers | BlockTable) -> mx.array:
    """Numbers, or rows of numbers, as an int32 array; an array unchanged."""
    return numbers if isinstance(numbers, mx.array) else mx.array(list(numbers), dtype=mx.int32)


def _to_list(array: mx.array) -> list[int]:
    return array.tolist()  # type: ignore[return-value]
