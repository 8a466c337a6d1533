"""Paged requests of a batched KV cache: slots that own pages."""

import mlx.core as mx

from ..attention import Mask
from ..attention.paged import PagedKvMetadata, check_paged_mask
from ..errors import OutOfPagesError
from .paged import TinyKvPagedCache, paged_metadata
from .slots import DenseSlot, RequestSlots


class PagedSlots(RequestSlots):
    """Base of `BatchingKvCache`: paged requests, which are not copied.

    A slot takes ownership of a request's cache, and `update_and_fetch_paged` passes all slots'
    block tables to paged attention.
    """

    def _add_paged(self, cache: TinyKvPagedCache, slot: int) -> None:
        """Assigns a request's cache to an idle slot."""
        # [task 3.2.4 add]
        self._slots[slot] = cache
        # [/task 3.2.4 add]

    def remove_request(self, slot: int) -> None:
        """Frees a slot: dense memory is reused later, pages return to the pool.

        Raises:
            ValueError: the slot does not exist or is idle.
        """
        self._check_slot(slot)
        request = self._slots[slot]
        if request is None:
            raise ValueError(f"BatchingKvCache: slot {slot} has no request.")
        if isinstance(request, TinyKvPagedCache):
            # [task 3.2.4 remove]
            request.release()
            # [/task 3.2.4 remove]
        self._slots[slot] = None

    def update_and_fetch_paged(
        self, key: mx.array, value: mx.array, mask_length: int | None = None, mask: Mask = None
    ) -> PagedKvMetadata:
        """Appends L tokens to every active slot's pages; returns the batch metadata.

        Args:
            key, value: B×H×L×D, one row per slot; rows of idle slots are ignored.
            mask_length: see `TinyKvPagedCache.update_and_fetch_paged`.
            mask: None or "causal", returned in the metadata.

        Returns:
            One row per slot; an idle slot has context length 0 and a block table of −1.

        Raises:
            ValueError: an array mask, dense requests, or all slots are idle; see also `append`.
            OutOfPagesError: too few free pages for the batch; nothing was appended.
        """
        check_paged_mask(mask)
        self._check_new(key, value)
        paged = self._paged()
        if not paged or any(isinstance(slot, DenseSlot) for slot in self._slots):
            raise ValueError("BatchingKvCache: no slot is paged; use update_and_fetch.")
        pool = paged[0].pool
        pool.check_tokens(key, value)
        # [task 3.2.1 batch]
        B, _, L, _ = key.shape
        slots = [[-1] * L for _ in range(B)]
        reserved: list[TinyKvPagedCache] = []
        try:
            for row, cache in enumerate(self._slots):
                if isinstance(cache, TinyKvPagedCache):
                    slots[row] = cache.reserve(L)
                    reserved.append(cache)
        except OutOfPagesError:
            for cache in reserved:
                cache.rewind(L)
            raise
        pool.write(mx.array(slots, dtype=mx.int32), key, value)
        rows = [slot if isinstance(slot, TinyKvPagedCache) else None for slot in self._slots]
        return paged_metadata(pool, rows, mask)
        # [/task 3.2.1 batch]
