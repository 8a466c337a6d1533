"""Attention backends over paged KV, selected by `LLM(attention_backend=…)`.

    paged        a kernel that reads the pages through the block table, without a gather
    flash        gathers a sequence's pages into one array, then `flash_attention`
    reference    gathers pages, then attends in plain MLX in float32

"flash" is bit-identical to "paged". "reference" is the oracle for both; its rounding may depend on
a prompt's chunking. Both copy all of a sequence's keys and values in each layer of each step, and
their steps are not captured: they are for comparison and debugging.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from ...attention import (
    flash_attention,
    gather_pages,
    paged_attention_reference,
    paged_attention_varlen_reference,
)
from ...kv_cache import PagedKvMetadata
from ...qwen3_week2 import AttentionFn
from ...qwen3_week3 import attend_paged


def attend_flash(
    query: mx.array, key: mx.array, value: mx.array, cache: Any, scale: float
) -> mx.array:
    """`AttentionFn` over `flash_attention`, sequence by sequence."""
    metadata = cache.update_and_fetch_paged(key, value, mask="causal")
    lengths: list[int] = metadata.context_lens.tolist()
    if metadata.cu_seqlens_q is None:
        queries = mx.split(query, query.shape[0])  # 1×H_q×L×D each
    else:
        ends = metadata.cu_seqlens_q.tolist()
        queries = mx.split(query, ends[1:-1], axis=2)
    rows = [
        _attend_sequence(own, metadata, index, length, scale)
        for index, (own, length) in enumerate(zip(queries, lengths, strict=True))
    ]
    return mx.concatenate(rows, axis=0 if metadata.cu_seqlens_q is None else 2)


def attend_reference(
    query: mx.array, key: mx.array, value: mx.array, cache: Any, scale: float
) -> mx.array:
    """`AttentionFn` in plain MLX."""
    metadata = cache.update_and_fetch_paged(key, value, mask="causal")
    pages = metadata.key_pages, metadata.value_pages
    table, lengths, size = metadata.block_table, metadata.context_lens, metadata.page_size
    if metadata.cu_seqlens_q is None:
        return paged_attention_reference(query, *pages, table, lengths, size, scale)
    attended = paged_attention_varlen_reference(
        query.squeeze(0).swapaxes(0, 1),  # T×H_q×D
        *pages,
        metadata.cu_seqlens_q,
        lengths,
        table,
        size,
        scale,
    )
    return attended.swapaxes(0, 1)[None]  # 1×H_q×T×D


ATTENTION_FUNCTIONS: Mapping[str, AttentionFn] = {
    "paged": attend_paged,
    "flash": attend_flash,
    "reference": attend_reference,
}
ATTENTION_BACKENDS = tuple(ATTENTION_FUNCTIONS)


def _attend_sequence(
    query: mx.array, metadata: PagedKvMetadata, index: int, length: int, scale: float
) -> mx.array:
    """Attends from one sequence's queries, 1×H_q×L×D, to its `length` keys."""
    if length == 0:
        return mx.zeros_like(query)
    page_ids = metadata.block_table[index]
    keys = gather_pages(metadata.key_pages, page_ids, length)[None]  # 1×H×S×D
    values = gather_pages(metadata.value_pages, page_ids, length)[None]
    return flash_attention(query, keys, values, scale, "causal")
