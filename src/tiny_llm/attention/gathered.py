"""Paged attention by gathering: copies a sequence's pages, then attends to the copy.

The oracle of the kernels, which do not copy. Shape letters are those of `paged`.
"""

from typing import Any, Literal

import mlx.core as mx

from .dense import scaled_dot_product_attention_grouped


def gather_pages(pages: mx.array, page_ids: mx.array, length: int) -> mx.array:
    """Gathers a sequence's first `length` tokens: P×H×page_size×D -> H×length×D."""
    # [task 3.1.3 pages]
    _, H, _, D = pages.shape
    gathered = pages[page_ids[: -(-length // pages.shape[2])]]  # (pages used)×H×page_size×D
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
    """Attends to one sequence's gathered pages: H_q×L×D -> H_q×L×D, in float32."""
    # [task 3.2.2 one]
    L = query.shape[1]
    # The first `hidden` queries precede all keys. Their output is zero, because a softmax over no
    # keys would be NaN.
    hidden = 0
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


def attend_gathered(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    block_table: mx.array,
    context_lens: mx.array,
    page_size: int,
    scale: float | None,
    mask: Literal["causal"] | None,
) -> mx.array:
    """Attends to each sequence of a batch; arguments as in `paged_attention`."""
    # [task 3.2.2 reference]
    rows = [
        _attend_sequence(
            query[b], key_pages, value_pages, block_table[b], context_len, page_size, scale, mask
        )
        for b, context_len in enumerate(to_list(context_lens))
    ]
    return mx.stack(rows) if rows else query
    # [/task 3.2.2 reference]


def attend_gathered_ragged(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    cu_seqlens_q: mx.array,
    context_lens: mx.array,
    block_table: mx.array,
    page_size: int,
    scale: float | None,
) -> mx.array:
    """Attends to each sequence of a ragged batch; arguments as in `paged_attention_varlen`."""
    # [task 3.3.1 reference]
    ends = to_list(cu_seqlens_q)
    rows = []
    for s, context_len in enumerate(to_list(context_lens)):
        chunk = query[ends[s] : ends[s + 1]].swapaxes(0, 1)  # H_q×L×D
        attended = _attend_sequence(
            chunk, key_pages, value_pages, block_table[s], context_len, page_size, scale, "causal"
        )
        rows.append(attended.swapaxes(0, 1))
    return mx.concatenate(rows) if rows else query
    # [/task 3.3.1 reference]


def to_list(array: mx.array) -> Any:
    """Converts an array to a list of integers, or of rows of integers."""
    return array.tolist()
