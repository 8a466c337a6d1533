"""`recorded_layers` over pages: those of an engine's ragged batches, and those of a pool."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from .. import kernels
from ..attention import Mask
from ..errors import OutOfPagesError
from .batching import BatchingKvCache
from .page_pool import TinyKvPagedPool
from .paged import PagedKvMetadata, TinyKvPagedCache
from .ragged import RaggedKvCache
from .recorded_layers import Step


def paged_step(caches: Sequence[Any], B: int, L: int) -> Step | None:
    """`Step` of caches in pages; None if they are not, or nothing was written to their pool yet.

    Raises:
        OutOfPagesError: their pool has too few; nothing was changed.
    """
    if isinstance(caches[0], RaggedKvCache):
        return _ragged_step(caches)
    layers = [_requests(cache, L) for cache in caches]
    pools = {request.pool for layer in layers for request in layer if request is not None}
    lengths = {tuple(None if row is None else row.offset for row in layer) for layer in layers}
    if len(pools) != 1 or len(lengths) != 1 or len(layers[0]) != B:
        return None
    pool = pools.pop()
    return None if pool.key_pages is None else _pool_step(pool, layers, L)


def _ragged_step(caches: Sequence[RaggedKvCache]) -> Step:
    storage, batch = caches[0].storage, caches[0].batch
    numbers = [batch.slot_mapping, batch.block_table, batch.context_lens, batch.cu_seqlens_q]

    def finish(buffers: list[mx.array]) -> None:
        storage.key_pages[:], storage.value_pages[:] = buffers[::2], buffers[1::2]

    pairs = zip(storage.key_pages, storage.value_pages, strict=True)
    return Step(numbers, [x for pair in pairs for x in pair], _ragged_caches, finish)


def _ragged_caches(numbers: list[mx.array], buffers: list[mx.array]) -> list["_PagesRecording"]:
    slot_mapping, *others = numbers
    slots = slot_mapping[None]  # 1×T
    return [_PagesRecording(buffers, index, slots, *others) for index in range(0, len(buffers), 2)]


def _requests(cache: Any, L: int) -> list[TinyKvPagedCache | None]:
    """A row's request or None, for each row of the batch; no rows if L more may not join them."""
    if isinstance(cache, BatchingKvCache):
        return cache.paged_requests(L)
    return [cache] if isinstance(cache, TinyKvPagedCache) else []


def _pool_step(
    pool: TinyKvPagedPool, layers: Sequence[Sequence[TinyKvPagedCache | None]], L: int
) -> Step:
    """`Step` where each layer has pages of its own, and all are in the pool's two arrays."""
    slots: list[list[list[int]]] = []
    reserved: list[TinyKvPagedCache] = []

    def undo() -> None:
        for request in reserved:
            request.rewind(L)

    try:
        for layer in layers:
            slots.append([[-1] * L for _ in layer])
            for row, request in enumerate(layer):
                if request is not None:
                    slots[-1][row] = request.reserve(L)
                    reserved.append(request)
    except OutOfPagesError:
        undo()
        raise
    pool.make_room()

    def finish(buffers: list[mx.array]) -> None:
        pool.key_pages, pool.value_pages = buffers

    page_ids = [[[] if row is None else row.page_ids for row in layer] for layer in layers]
    width = max(len(pages) for layer in page_ids for pages in layer)
    tables = [[pages + [-1] * (width - len(pages)) for pages in layer] for layer in page_ids]
    context_lens = [0 if row is None else row.offset for row in layers[0]]
    # layers×B×L, layers×B×width and B: in one array each, for each would be an input of the node.
    numbers = [mx.array(x, dtype=mx.int32) for x in (slots, tables, context_lens)]
    assert pool.key_pages is not None
    assert pool.value_pages is not None
    return Step(numbers, [pool.key_pages, pool.value_pages], _pool_caches, finish, undo)


def _pool_caches(numbers: list[mx.array], buffers: list[mx.array]) -> list["_PagesRecording"]:
    slots, block_tables, context_lens = numbers
    return [
        _PagesRecording(
            buffers,
            0,
            slots[layer : layer + 1].squeeze(0),
            block_tables[layer : layer + 1].squeeze(0),
            context_lens,
        )
        for layer in range(slots.shape[0])
    ]


class _PagesRecording:
    """What attention asks of pages, whose keys and values are buffers[index] and the next.

    Args:
        buffers: P×H×page_size×D each.
        index: of the keys.
        slots: B×L int32, where the new tokens go.
        block_table, context_lens, cu_seqlens_q: as in `PagedKvMetadata`.
    """

    def __init__(
        self,
        buffers: list[mx.array],
        index: int,
        slots: mx.array,
        block_table: mx.array,
        context_lens: mx.array,
        cu_seqlens_q: mx.array | None = None,
    ):
        self._buffers, self._index, self._slots = buffers, index, slots
        self._numbers = block_table, context_lens
        self._cu_seqlens_q = cu_seqlens_q

    def update_and_fetch_paged(
        self, key: mx.array, value: mx.array, mask_length: int | None = None, mask: Mask = None
    ) -> PagedKvMetadata:
        """See `TinyKvPagedCache`."""
        buffers, keys, values = self._buffers, self._index, self._index + 1
        buffers[keys] = kernels.paged_cache_write(buffers[keys], key, self._slots)
        buffers[values] = kernels.paged_cache_write(buffers[values], value, self._slots)
        page_size = buffers[keys].shape[2]
        return PagedKvMetadata(
            buffers[keys], buffers[values], *self._numbers, page_size, mask, self._cu_seqlens_q
        )
