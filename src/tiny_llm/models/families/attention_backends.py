"""Attention backends over paged KV, selected by `LLM(attention_backend=…)`.

    paged        kernel that reads pages through the block table, called by `decoder.py`
    flash        gathers a sequence's pages into one array, then calls `flash_attention`
    reference    gathers pages, then attends in plain MLX in float32

"flash" is bit-identical to "paged", and does not support 8-bit pages. "reference" is the oracle
for both; its rounding may depend on how the prompt is chunked. "flash" and "reference" are for
debugging only: they copy each sequence's KV in every layer and step, without graph capture.
"""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from ... import kernels
from ...attention import gather_pages, paged_attention_varlen_reference, sliding_window_mask
from ...attention.paged import PagedKvMetadata
from ...kv_storage.int8_rows import SCALE_BYTES, read_int8_pages, write_int8_rows
from ...kv_storage.layer_cache import LayerCacheView

OptionalArray = mx.array | None


def attend_flash(
    query: mx.array,
    key: OptionalArray,
    value: OptionalArray,
    cache: Any,
    scale: float,
    window: int,
    sinks: OptionalArray,
) -> mx.array:
    """Writes KV to pages, then calls `flash_attention` once per sequence.

    The course's, over contiguous caches, is in `qwen3_week2/attention.py`.
    """
    metadata = cache.update_and_fetch_paged(key, value, mask="causal")
    lengths: list[int] = metadata.context_lens.tolist()
    queries = mx.split(query, metadata.cu_seqlens_q.tolist()[1:-1], axis=2)  # 1×H_q×L×D each
    outputs = [
        _attend_sequence(each, metadata, index, length, scale, window, sinks)
        for index, (each, length) in enumerate(zip(queries, lengths, strict=True))
    ]
    return mx.concatenate(outputs, axis=2)


def attend_reference(
    query: mx.array,
    key: OptionalArray,
    value: OptionalArray,
    cache: Any,
    scale: float,
    window: int,
    sinks: OptionalArray,
) -> mx.array:
    if cache.buffers[0].dtype == mx.int8:
        metadata = update_and_fetch_int8(key, value, cache, query.shape[-1])
    else:
        metadata = cache.update_and_fetch_paged(key, value, mask="causal")
    assert metadata.cu_seqlens_q is not None
    attended = paged_attention_varlen_reference(
        query.squeeze(0).swapaxes(0, 1),  # T×H_q×D
        metadata.key_pages,
        metadata.value_pages,
        metadata.cu_seqlens_q,
        metadata.context_lens,
        metadata.block_table,
        metadata.page_size,
        scale,
        window,
        sinks,
    )
    return attended.swapaxes(0, 1)[None]  # 1×H_q×T×D


def update_and_fetch_int8(
    key: OptionalArray, value: OptionalArray, cache: LayerCacheView, head_dim: int
) -> PagedKvMetadata:
    """`update_and_fetch_paged` for int8 pages; returns dequantized pages."""
    step = cache.attention_metadata
    assert step.block_table is not None
    width = head_dim + SCALE_BYTES  # without padding
    pages = [buffer[..., :width] for buffer in cache.buffers]
    if key is not None and value is not None:
        pages = [
            write_int8_rows(rows, tokens, step.slot_mapping)
            for rows, tokens in zip(pages, (key, value), strict=True)
        ]
        cache.buffers = [
            _copy_slots(rows, buffer, step.slot_mapping)
            for rows, buffer in zip(pages, cache.buffers, strict=True)
        ]
    (keys, table), (values, _) = (read_int8_pages(rows, step.block_table) for rows in pages)
    page_size = keys.shape[2]
    return PagedKvMetadata(
        keys, values, table, step.context_lens, page_size, "causal", step.cu_seqlens_q
    )


def _copy_slots(source: mx.array, pages: mx.array, slots: mx.array) -> mx.array:
    """Copies the rows of 1×T slots to 8-bit pages, in place, because layers may share their memory.

    `source` is a copy of the pages without padding.
    """
    page_size, padding = pages.shape[2], pages.shape[3] - source.shape[3]
    rows = source[slots[0] // page_size, :, slots[0] % page_size].swapaxes(0, 1)  # H×T×(D + 4)
    rows = mx.pad(rows[None], [(0, 0), (0, 0), (0, 0), (0, padding)])
    # As bfloat16, because `paged_cache_write` would quantize the rows again.
    target, pairs = pages.view(mx.bfloat16), rows.view(mx.bfloat16)
    return kernels.paged_cache_write(target, pairs, slots, overwrite=True).view(mx.int8)


# Functions of (query, key, value, cache, scale, window, sinks).
COMPARISON_BACKENDS: Mapping[str, Callable[..., mx.array]] = {
    "flash": attend_flash,
    "reference": attend_reference,
}
ATTENTION_BACKENDS = ("paged", *COMPARISON_BACKENDS)


def _attend_sequence(
    query: mx.array,
    metadata: PagedKvMetadata,
    index: int,
    length: int,
    scale: float,
    window: int,
    sinks: OptionalArray,
) -> mx.array:
    """Attends from one sequence's queries, 1×H_q×L×D, to its `length` keys."""
    page_ids = metadata.block_table[index]
    mask = None  # causal
    if window:
        # −1 is a freed page before the window. Page 0 is read instead, and masked.
        page_ids = mx.maximum(page_ids, 0)
        mask = sliding_window_mask(query.shape[2], length, window, query.dtype)
    keys = gather_pages(metadata.key_pages, page_ids, length)[None]  # 1×H×S×D
    values = gather_pages(metadata.value_pages, page_ids, length)[None]
    return kernels.flash_attention(query, keys, values, scale, mask is None, mask, sinks=sinks)
