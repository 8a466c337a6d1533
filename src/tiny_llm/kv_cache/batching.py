"""Batched KV cache with one slot per request.

All requests of a batch are either dense (`full.py`) or paged (`paged.py`).
"""

import mlx.core as mx

from ..attention import Mask, causal_mask, is_custom_mask
from .full import TinyKvCache
from .paged import TinyKvPagedCache
from .paged_slots import PagedSlots
from .slots import DenseSlot, right_align


class BatchingKvCache(PagedSlots):
    """Keys and values of several requests, one slot each.

    Dense requests are copied into one left-aligned buffer, in which every slot has the capacity of
    the longest request:

        slot 0   k k k . . .
        slot 1   k k k k k k
        slot 2   . . . . . .     idle

    Flash attention reads the buffer in place, given each request's length (`append`). Attention in
    plain MLX needs rows of equal length and a mask for the padding, so `update_and_fetch` copies
    the whole batch, right-aligned, at every step.

    Paged requests (Week 3) are `PagedSlots`'.

    Args:
        max_active_requests: number of slots B.
        max_seq_len: maximum tokens per request.
    """

    def add_request(self, cache: TinyKvCache, slot: int) -> None:
        """Moves a request, usually after its prefill, to an idle slot.

        Copies a `TinyKvFullCache`; takes ownership of a `TinyKvPagedCache` and its pages.

        Raises:
            ValueError: the slot does not exist or is in use; the cache exceeds `max_seq_len`, has
                several sequences, already has a slot, or differs from the batch in kind (dense or
                paged), heads or pool.
        """
        cache = self._check_request(cache, slot)
        if isinstance(cache, TinyKvPagedCache):
            self._add_paged(cache, slot)
            return
        # [task 2.6.2 add]
        offsets = [-1] * self.max_active_requests
        offsets[slot] = 0
        self._copy_request(cache, offsets)
        self._slots[slot] = DenseSlot(cache.offset)
        # [/task 2.6.2 add]

    def append(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array, list[int]]:
        """See `TinyKvCache`: appends L tokens to every active slot.

        Rows of idle slots are ignored, and their context length is 0.

        Raises:
            ValueError: key and value differ in shape, do not have one row per slot, or do not match
                the cached ones; a request would exceed `max_seq_len`; the requests are paged.
        """
        self._check_new(key, value)
        if self._paged():
            raise ValueError(
                "BatchingKvCache: paged requests have no buffer; use update_and_fetch_paged."
            )
        # [task 2.6.2 append]
        L = key.shape[2]
        offsets = [-1 if length is None else length for length in self.lengths]
        keys, values = self._write(key, value, offsets)
        self._slots = [None if length is None else DenseSlot(length + L) for length in self.lengths]
        return keys, values, [length or 0 for length in self.lengths]
        # [/task 2.6.2 append]

    def update_and_fetch(
        self, keys: mx.array, values: mx.array, mask_length: int | None = None, mask: Mask = None
    ) -> tuple[mx.array, mx.array, int | None, Mask]:
        """Appends L tokens to every active slot and returns the padded batch.

        Args:
            keys, values: B×H×L×D, one row per slot; rows of idle slots are ignored.
            mask_length: number of queries, at most L; L if None.
            mask: None or "causal"; the cache builds the mask.

        Returns:
            (keys B×H×S_max×D, values B×H×S_max×D, None, mask B×1×L×S_max), where S_max is the
            longest request's length. The mask is causal within each request, and −inf on padding
            and on idle slots.

        Raises:
            ValueError: an array mask, or all slots are idle; see also `append`.
        """
        if is_custom_mask(mask):
            raise ValueError(
                "BatchingKvCache: mask must be None or 'causal'; the cache builds the mask array."
            )
        if all(length is None for length in self.lengths):
            raise ValueError("BatchingKvCache: all slots are idle; call add_request first.")
        queries = keys.shape[2] if mask_length is None else mask_length
        buffer_keys, buffer_values, lengths = self.append(keys, values)
        # [task 2.6.2 fetch]
        masks = []
        for S in lengths:
            hidden = mx.full((1, 1, queries, max(lengths) - S), -mx.inf, dtype=keys.dtype)
            visible = causal_mask(queries, S, keys.dtype)[None, None]
            masks.append(mx.concatenate([hidden, visible], axis=3))
        batch_mask = mx.concatenate(masks)
        # [/task 2.6.2 fetch]
        return (
            right_align(buffer_keys, lengths),
            right_align(buffer_values, lengths),
            None,
            batch_mask,
        )
