"""How the decoder attends to keys and values in pages: what `LLM(attention_backend=…)` chooses.

    paged        a kernel that walks the block table and gathers nothing
    flash        a sequence's pages are gathered into one array, then `flash_attention`
    reference    the readable functions: pages are gathered, then plain MLX attends, in float32

"flash" has the bits of "paged". "reference" is the oracle of both, and where it rounds may depend
on how a prompt is cut into chunks. Both copy all keys and values of a sequence in each layer of
each step, and their steps are not recorded: they are for comparing and for finding errors.
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
from ...qwen3_week2 import Attend
from ...qwen3_week3 import attend_paged


def attend_flash_gathered(
    query: mx.array, key: mx.array, value: mx.array, cache: Any, scale: float
) -> mx.array:
    """`Attend` by `flash_attention`, one sequence after the other."""
    found = cache.update_and_fetch_paged(key, value, mask="causal")
    lengths: list[int] = found.context_lens.tolist()
    if found.cu_seqlens_q is None:
        queries = mx.split(query, query.shape[0])  # 1×H_q×L×D each
    else:
        ends = found.cu_seqlens_q.tolist()
        queries = mx.split(query, ends[1:-1], axis=2)
    rows = [
        _attend_to_one(own, found, index, length, scale)
        for index, (own, length) in enumerate(zip(queries, lengths, strict=True))
    ]
    return mx.concatenate(rows, axis=0 if found.cu_seqlens_q is None else 2)


def attend_reference(
    query: mx.array, key: mx.array, value: mx.array, cache: Any, scale: float
) -> mx.array:
    """`Attend` in plain MLX."""
    found = cache.update_and_fetch_paged(key, value, mask="causal")
    pages = found.key_pages, found.value_pages
    table, lengths, size = found.block_table, found.context_lens, found.page_size
    if found.cu_seqlens_q is None:
        return paged_attention_reference(query, *pages, table, lengths, size, scale)
    attended = paged_attention_varlen_reference(
        query.squeeze(0).swapaxes(0, 1),  # T×H_q×D
        *pages,
        found.cu_seqlens_q,
        lengths,
        table,
        size,
        scale,
    )
    return attended.swapaxes(0, 1)[None]  # 1×H_q×T×D


ATTEND: Mapping[str, Attend] = {
    "paged": attend_paged,
    "flash": attend_flash_gathered,
    "reference": attend_reference,
}
ATTENTION_BACKENDS = tuple(ATTEND)


def _attend_to_one(
    query: mx.array, found: PagedKvMetadata, index: int, length: int, scale: float
) -> mx.array:
    """One sequence's queries, 1×H_q×L×D, to its `length` keys."""
    if length == 0:
        return mx.zeros_like(query)
    page_ids = found.block_table[index]
    keys = gather_pages(found.key_pages, page_ids, length)[None]  # 1×H×S×D
    values = gather_pages(found.value_pages, page_ids, length)[None]
    return flash_attention(query, keys, values, scale, "causal")
