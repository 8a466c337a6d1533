"""Step plans for dense and paged per-request caches.

A step can be planned if every layer's cache has capacity for the new tokens, and all layers have
the same number of tokens per sequence. Otherwise each layer updates its own cache, which grows
buffers and reports errors.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..errors import OutOfPagesError
from ..kv_storage.step_plan import AttentionMetadata, StepPlan
from .batching import BatchingKvCache
from .full import TinyKvFullCache
from .page_pool import TinyKvPagedPool
from .paged import TinyKvPagedCache

LayerRequests = Sequence[TinyKvPagedCache | None]  # one layer's caches, one per row of the batch


def plan_dense(caches: Sequence[Any], B: int, L: int) -> StepPlan | None:
    """Plans L more tokens for each of B sequences in dense caches, one per layer.

    Returns None if a cache is not dense or must grow, or if layers differ in number of tokens.
    """
    if not all(isinstance(cache, TinyKvFullCache | BatchingKvCache) for cache in caches):
        return None
    offsets = caches[0].next_offsets(L)
    if offsets is None or len(offsets) != B:
        return None
    if any(cache.next_offsets(L) != offsets for cache in caches[1:]):
        return None

    def commit(buffers: list[mx.array]) -> None:
        for cache, keys, values in zip(caches, buffers[::2], buffers[1::2], strict=True):
            cache.commit_append(keys, values, L)

    context_lens = [0 if offset < 0 else offset + L for offset in offsets]
    attention_metadata = AttentionMetadata(
        mx.array(offsets, mx.int32), mx.array(context_lens, mx.int32)
    )
    return StepPlan(attention_metadata, [x for cache in caches for x in cache.state], commit)


def plan_paged(caches: Sequence[Any], B: int, L: int) -> StepPlan | None:
    """Plans L more tokens for each of B sequences in one pool's pages.

    Returns None if a cache is not paged or lacks capacity, if layers differ in number of tokens, or
    if the pool has not been written to.

    Raises:
        OutOfPagesError: too few free pages; nothing was changed.
    """
    layers = [_requests(cache, L) for cache in caches]
    pools = {request.pool for layer in layers for request in layer if request is not None}
    lengths = {tuple(None if row is None else row.offset for row in layer) for layer in layers}
    if len(pools) != 1 or len(lengths) != 1 or len(layers[0]) != B:
        return None
    pool = pools.pop()
    return None if pool.key_pages is None else _plan_pool(pool, layers, L)


def _requests(cache: Any, L: int) -> LayerRequests:
    if isinstance(cache, BatchingKvCache):
        return cache.paged_requests(L)
    return [cache] if isinstance(cache, TinyKvPagedCache) else []


def _plan_pool(pool: TinyKvPagedPool, layers: Sequence[LayerRequests], L: int) -> StepPlan:
    reserved: list[TinyKvPagedCache] = []

    def rollback() -> None:
        for request in reserved:
            request.rewind(L)

    def reserve(request: TinyKvPagedCache | None) -> list[int]:
        if request is None:
            return [-1] * L
        slots = request.reserve(L)
        reserved.append(request)
        return slots

    try:
        slots = [[reserve(request) for request in layer] for layer in layers]
    except OutOfPagesError:
        rollback()
        raise
    pool.ensure_capacity()

    def commit(buffers: list[mx.array]) -> None:
        pool.key_pages, pool.value_pages = buffers

    page_ids = [[[] if row is None else row.page_ids for row in layer] for layer in layers]
    width = max(len(pages) for layer in page_ids for pages in layer)
    block_tables = [[pages + [-1] * (width - len(pages)) for pages in layer] for layer in page_ids]
    context_lens = [0 if row is None else row.offset for row in layers[0]]
    # The layers share one array of each kind (layers×B×L, B, layers×B×width), because separate
    # arrays would be additional inputs of the captured graph node.
    attention_metadata = AttentionMetadata(
        *(mx.array(x, mx.int32) for x in (slots, context_lens, block_tables))
    )
    assert pool.key_pages is not None
    assert pool.value_pages is not None
    return StepPlan(attention_metadata, [pool.key_pages, pool.value_pages], commit, rollback)
