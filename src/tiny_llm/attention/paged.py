"""Paged attention as Week 3 writes it; the engine has its own backends.

Key j of sequence b is row j % page_size of page block_table[b, j // page_size]. Attention has two
implementations: a reference in plain MLX that gathers a sequence's pages into one array, and a
kernel that walks the block table without gathering. The reference is the kernel's test oracle and
the fallback where the extension is not built.

Shape letters are those of `dense`, plus P physical pages and T tokens across all sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx

from .. import kernels
from .dense import Mask, is_custom_mask, scaled_dot_product_attention_grouped
from .gathered import attend_gathered, attend_gathered_ragged, gather_pages, to_list

Integers = Sequence[int] | mx.array
BlockTable = Sequence[Sequence[int]] | mx.array


@dataclass(frozen=True, eq=False)
class PagedKvMetadata:
    """Inputs of `paged_attention` for B sequences.

    Release it before the next write to the pages; otherwise the write copies them.

    Attributes:
        key_pages, value_pages: P×H×page_size×D.
        block_table: B×max_pages int32, each sequence's pages in order, padded with −1.
        context_lens: B int32, cached tokens of each sequence; 0 for an idle row.
        mask: None or "causal".
        cu_seqlens_q: B+1 int32 for a ragged batch (`paged_attention_varlen`), else None.
    """

    key_pages: mx.array
    value_pages: mx.array
    block_table: mx.array
    context_lens: mx.array
    page_size: int
    mask: Mask = None
    cu_seqlens_q: mx.array | None = None


def paged_attention(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    block_table: BlockTable,
    context_lens: Integers,
    page_size: int,
    scale: float | None = None,
    mask: Literal["causal"] | None = "causal",
    window: int = 0,
) -> mx.array:
    """Grouped-query attention over paged keys and values.

    With the extension, the result has the same bits as `flash_attention` on contiguous keys,
    regardless of page size and page order.

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention" (2023).

    Args:
        query: B×H_q×L×D, float32, float16 or bfloat16, D at most 512.
        key_pages, value_pages: P×H×page_size×D of the same dtype.
        block_table: B×max_pages int32: each sequence's pages in order, padded with −1 (not read).
        context_lens: B int32: number of keys per sequence, including the new tokens'.
        page_size: tokens per page.
        scale: factor for the scores; 1/√D if None.
        mask: "causal" (query i of sequence b attends to keys j ≤ i + context_lens[b] − L), or None
            (all keys).
        window: sliding window: number of most recent keys that a query attends to, its own
            included; 0 for all. Requires a causal mask. Pages before a sequence's first window are
            not read; their block table entries may be arbitrary.

    Returns:
        B×H_q×L×D in the dtype of `query`. A row with no visible key is zero.

    Raises:
        ValueError: an unsupported shape, dtype, page size, mask or window; a length or page id,
            given as a Python integer, is out of range. Array values are known only at evaluation:
            with the extension, a length beyond the block table or an out-of-range page id gives
            NaN in all of the sequence's rows.
    """
    if is_custom_mask(mask):
        raise ValueError(f'[paged_attention] expected mask None or "causal", got {mask!r}.')
    name = "paged_attention"
    _check_window(name, window, mask)
    queries = query.shape[-2]
    _check_pages(name, key_pages, page_size, block_table, context_lens, window, queries)
    table, lengths = kernels.as_int32(block_table), kernels.as_int32(context_lens)
    if not kernels.is_built():
        numbers = to_list(table), to_list(lengths)
        _check_pages(name, key_pages, page_size, *numbers, window, queries)
        return paged_attention_reference(
            query, key_pages, value_pages, table, lengths, page_size, scale, mask, window
        )
    return kernels.paged_attention(
        query, key_pages, value_pages, table, lengths, scale, mask == "causal", window
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
    window: int = 0,
) -> mx.array:
    """Reference for `paged_attention`: plain MLX in float32."""
    if window:
        B, _, L, _ = query.shape
        tokens = query.swapaxes(1, 2).reshape(B * L, -1, query.shape[-1])  # T×H_q×D
        ends = mx.arange(0, B * L + 1, L, dtype=mx.int32) if L else mx.zeros(B + 1, mx.int32)
        pages = key_pages, value_pages, ends, context_lens, block_table
        out = paged_attention_varlen_reference(tokens, *pages, page_size, scale, window)
        return out.reshape(B, L, -1, query.shape[-1]).swapaxes(1, 2)
    return attend_gathered(
        query, key_pages, value_pages, block_table, context_lens, page_size, scale, mask
    )


def paged_attention_varlen(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    cu_seqlens_q: Integers,
    context_lens: Integers,
    block_table: BlockTable,
    page_size: int,
    scale: float | None = None,
    window: int = 0,
) -> mx.array:
    """Causal `paged_attention` over a ragged batch, without padding the queries.

    Sequence s has queries cu_seqlens_q[s] to cu_seqlens_q[s + 1] − 1, the last of its
    context_lens[s] tokens. A call can mix decoding sequences (one query each) with prefill chunks.

        cu_seqlens_q    0 1 2       7       two decoding sequences and a chunk of five
        query           a b c c c c c

    Args:
        query: T×H_q×D, the queries of all sequences; shape and dtype of the result.
        key_pages, value_pages, context_lens, block_table, page_size, scale, window: see
            `paged_attention`.
        cu_seqlens_q: B+1 int32, ascending from 0 to T.

    Raises:
        ValueError: see `paged_attention`; or `cu_seqlens_q`, if given as Python integers, does not
            ascend from 0 to T.
    """
    name = "paged_attention_varlen"
    _check_window(name, window, "causal")
    if not isinstance(cu_seqlens_q, mx.array):
        ends = list(cu_seqlens_q)
        if ends != sorted(ends) or ends[:1] != [0] or ends[-1] != query.shape[0]:
            raise ValueError(
                f"[{name}] expected cu_seqlens_q ascending from 0 to {query.shape[0]}, the number "
                f"of queries, got {ends}."
            )
    ends_array, lengths = kernels.as_int32(cu_seqlens_q), kernels.as_int32(context_lens)
    table = kernels.as_int32(block_table)
    _check_pages(name, key_pages, page_size, block_table, context_lens, window, ends_array)
    if not kernels.is_built():
        numbers = to_list(table), to_list(lengths)
        _check_pages(name, key_pages, page_size, *numbers, window, ends_array)
        return paged_attention_varlen_reference(
            query, key_pages, value_pages, ends_array, lengths, table, page_size, scale, window
        )
    return kernels.paged_attention_varlen(
        query, key_pages, value_pages, ends_array, lengths, table, scale, window
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
    window: int = 0,
    sinks: mx.array | None = None,
) -> mx.array:
    """Reference for `paged_attention_varlen`: plain MLX in float32.

    sinks: H_q attention sinks: logits that join only the softmax's denominator, one per query head.
    """
    pages = key_pages, value_pages, cu_seqlens_q, context_lens, block_table
    if window or sinks is not None:
        return _attend_in_windows(query, *pages, page_size, scale, window, sinks)
    return attend_gathered_ragged(query, *pages, page_size, scale)


def sliding_window_mask(L: int, S: int, window: int, dtype: mx.Dtype) -> mx.array:
    """Causal mask L×S: a query attends to its most recent `window` keys.

    0 where i + S − L − window < j ≤ i + S − L, −inf elsewhere.
    """
    newest = mx.arange(S - L, S)[:, None]  # L×1
    keys = mx.arange(S)
    visible = (keys <= newest) & (keys > newest - window)
    return mx.where(visible, 0.0, -mx.inf).astype(dtype)


def _attend_in_windows(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    cu_seqlens_q: mx.array,
    context_lens: mx.array,
    block_table: mx.array,
    page_size: int,
    scale: float | None,
    window: int,
    sinks: mx.array | None,
) -> mx.array:
    """Reference for ragged batches with a window or sinks; gathers only pages in windows.

    The sinks are the masks of an additional key; it and its value are zeros.
    """
    rows, ends = [query[:0]], to_list(cu_seqlens_q)
    for s, context_len in enumerate(to_list(context_lens)):
        chunk = query[ends[s] : ends[s + 1]]  # L×H_q×D
        # Queries before the last `context_len` precede all keys; their output is zero.
        seen = chunk[max(0, len(chunk) - context_len) :]
        rows.append(mx.zeros_like(chunk[len(seen) :]))
        if len(seen) == 0:
            continue
        first_page = _first_key(context_len, len(seen), window) // page_size
        S = context_len - first_page * page_size
        key, value = (
            gather_pages(pages, block_table[s][first_page:], S).astype(mx.float32)
            for pages in (key_pages, value_pages)
        )
        seen = seen.swapaxes(0, 1).astype(mx.float32)  # H_q×L×D
        mask = sliding_window_mask(seen.shape[1], S, window or S, mx.float32)
        if sinks is not None:
            key, value = (mx.pad(rows, [(0, 0), (0, 1), (0, 0)]) for rows in (key, value))
            H_q, L, _ = seen.shape
            sink_column = mx.broadcast_to(sinks[:, None, None], (H_q, L, 1))
            mask = mx.concatenate([mx.broadcast_to(mask, (H_q, L, S)), sink_column], axis=-1)
        attended = scaled_dot_product_attention_grouped(seen, key, value, scale, mask)
        rows.append(attended.swapaxes(0, 1).astype(query.dtype))
    return mx.concatenate(rows)


def _first_key(context_len: int, num_queries: int, window: int) -> int:
    """Returns the index of the first key that any query of a sequence attends to."""
    return max(0, context_len - num_queries + 1 - window) if window else 0


def _check_window(name: str, window: int, mask: Literal["causal"] | None) -> None:
    if window < 0:
        raise ValueError(f"[{name}] expected a window of at least 1, or 0 for none, got {window}.")
    if window and mask is None:
        raise ValueError(f"[{name}] expected a causal mask with a window of {window}.")


def _check_pages(
    name: str,
    key_pages: mx.array,
    page_size: int,
    block_table: BlockTable,
    context_lens: Integers,
    window: int = 0,
    queries: Any = 0,
) -> None:
    """Rejects arguments that the kernel could only reject at evaluation.

    Skips lengths and page ids in arrays, which may be lazy. `queries` is the number of queries per
    sequence, or the array `cu_seqlens_q`.
    """
    if key_pages.ndim == 4 and key_pages.shape[2] != page_size:
        raise ValueError(
            f"[{name}] expected key_pages with page_size {page_size}, got shape {key_pages.shape}."
        )
    if isinstance(context_lens, mx.array) or isinstance(block_table, mx.array):
        return
    is_ragged = isinstance(queries, mx.array)
    counts = to_list(queries[1:] - queries[:-1]) if is_ragged else [queries] * len(context_lens)
    for row, length, count in zip(block_table, context_lens, counts, strict=False):
        if not 0 <= length <= len(row) * page_size:
            raise ValueError(
                f"[{name}] expected context_lens from 0 to {len(row) * page_size}, the capacity of "
                f"a row of the block table, got {length}."
            )
        first_page = _first_key(length, count, window) // page_size
        for page in row[first_page : -(-length // page_size)]:
            if not 0 <= page < key_pages.shape[0]:
                raise ValueError(
                    f"[{name}] expected page ids from 0 to {key_pages.shape[0] - 1}, got {page}."
                )


def check_paged_mask(mask: Any) -> None:
    """Rejects masks that paged attention does not support."""
    if is_custom_mask(mask):
        raise ValueError(
            "paged KV cache: mask must be None or 'causal'; paged attention does not support array "
            "masks."
        )
