"""Batched KV cache with one slot per request.

All requests of a batch are either dense (`full.py`) or paged (`paged.py`).
"""

from dataclasses import dataclass

import mlx.core as mx

from .. import kernels
from ..attention import Mask, causal_mask, is_custom_mask
from ..attention.paged import PagedKvMetadata, check_paged_mask
from ..errors import OutOfPagesError
from .full import TinyKvCache, TinyKvFullCache, grow_buffer
from .paged import TinyKvPagedCache, paged_metadata


@dataclass
class _DenseSlot:
    """Slot of a dense request, whose tokens are in the batch's buffer."""

    offset: int  # number of cached tokens


class BatchingKvCache(TinyKvCache):
    """Keys and values of several requests, one slot each.

    Dense requests are copied into one left-aligned buffer, in which every slot has the capacity of
    the longest request:

        slot 0   k k k . . .
        slot 1   k k k k k k
        slot 2   . . . . . .     idle

    Flash attention reads the buffer in place, given each request's length (`append`). Attention in
    plain MLX needs rows of equal length and a mask for the padding, so `update_and_fetch` copies
    the whole batch, right-aligned, at every step.

    Paged requests (Week 3) are not copied: a slot takes ownership of the request's cache, and
    `update_and_fetch_paged` passes all slots' block tables to paged attention.

    Args:
        max_active_requests: number of slots B.
        max_seq_len: maximum tokens per request.
    """

    def __init__(self, max_active_requests: int, max_seq_len: int):
        self.max_active_requests = max_active_requests
        self.max_seq_len = max_seq_len
        self._slots: list[_DenseSlot | TinyKvPagedCache | None] = [None] * max_active_requests
        # B slots × H heads × capacity × head size D, for dense requests.
        self._keys: mx.array | None = None
        self._values: mx.array | None = None

    @property
    def lengths(self) -> list[int | None]:
        """Number of cached tokens in each slot; None for an idle slot."""
        return [None if slot is None else slot.offset for slot in self._slots]

    def add_request(self, cache: TinyKvCache, slot: int) -> None:
        """Moves a request, usually after its prefill, to an idle slot.

        Copies a `TinyKvFullCache`; takes ownership of a `TinyKvPagedCache` and its pages.

        Raises:
            ValueError: the slot does not exist or is in use; the cache exceeds `max_seq_len`, has
                several sequences, already has a slot, or differs from the batch in kind (dense or
                paged), heads or pool.
        """
        self._check_slot(slot)
        if self._slots[slot] is not None:
            raise ValueError(f"BatchingKvCache: slot {slot} already has a request.")
        if not isinstance(cache, TinyKvFullCache | TinyKvPagedCache):
            raise ValueError(
                "BatchingKvCache: the cache must be a TinyKvFullCache or a TinyKvPagedCache, got "
                f"{type(cache).__name__}."
            )
        if cache.offset > self.max_seq_len:
            raise ValueError(
                f"BatchingKvCache: a request must have at most {self.max_seq_len} tokens, got "
                f"{cache.offset}."
            )
        self._check_kind(cache)
        if isinstance(cache, TinyKvPagedCache):
            # [task 3.2.4 add]
            self._slots[slot] = cache
            return
            # [/task 3.2.4 add]
        # [task 2.6.2 add]
        offsets = [-1] * self.max_active_requests
        offsets[slot] = 0
        self._copy_request(cache, offsets)
        self._slots[slot] = _DenseSlot(cache.offset)
        # [/task 2.6.2 add]

    def _copy_request(self, cache: TinyKvFullCache, offsets: list[int]) -> None:
        """Copies a request's tokens, if any, to the slots whose offset is not −1."""
        if cache.key_values is None:
            return
        key, value = cache.key_values
        if key.shape[0] != 1:
            raise ValueError(
                f"BatchingKvCache: a request must have 1 sequence, got {key.shape[0]}."
            )
        rows = (self.max_active_requests, *key.shape[1:])
        keys, values = mx.broadcast_to(key, rows), mx.broadcast_to(value, rows)  # views, not copies
        # Overwriting is safe even with steps in flight on a GPU, because they do not read the rows
        # of idle slots.
        self._write(keys, values, offsets, overwrite=True)

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
        self._slots = [
            None if length is None else _DenseSlot(length + L) for length in self.lengths
        ]
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
            _right_align(buffer_keys, lengths),
            _right_align(buffer_values, lengths),
            None,
            batch_mask,
        )

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
        if not paged or any(isinstance(slot, _DenseSlot) for slot in self._slots):
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

    def next_offsets(self, L: int) -> list[int] | None:
        """Returns the offset of each slot's next L tokens, −1 for an idle slot.

        Returns None if the buffer must grow or requests are paged.
        """
        if self._keys is None or self._paged():
            return None
        offsets = [-1 if length is None else length for length in self.lengths]
        return offsets if max(offsets) + L <= self._keys.shape[2] else None

    def commit_append(self, keys: mx.array, values: mx.array, L: int) -> None:
        """Stores buffers to which a step plan has appended L tokens per active slot."""
        self._keys, self._values = keys, values
        for slot in self._slots:
            if slot is not None:
                slot.offset += L

    @property
    def state(self) -> list[mx.array]:
        """See `TinyKvCache`."""
        arrays = [x for x in (self._keys, self._values) if x is not None]
        return arrays + [array for cache in self._paged()[:1] for array in cache.state]

    def rewind(self, n: int) -> None:
        """Drops the newest `n` tokens of every active slot.

        Raises:
            ValueError: a slot has fewer than `n` tokens.
        """
        for slot, length in enumerate(self.lengths):
            if length is not None and not 0 <= n <= length:
                raise ValueError(
                    f"BatchingKvCache: cannot rewind slot {slot} by {n} tokens; it has {length}."
                )
        for request in self._slots:
            if isinstance(request, TinyKvPagedCache):
                request.rewind(n)
            elif request is not None:
                request.offset -= n

    def release(self) -> None:
        """Frees every slot and releases the memory."""
        for cache in self._paged():
            cache.release()
        self._slots = [None] * self.max_active_requests
        self._keys = None
        self._values = None

    def paged_requests(self, L: int) -> list[TinyKvPagedCache | None]:
        """Each slot's paged cache or None; [] if dense or without room for L tokens."""
        requests: list[TinyKvPagedCache | None] = []
        for slot in self._slots:
            if isinstance(slot, _DenseSlot) or (slot and slot.offset + L > self.max_seq_len):
                return []
            requests.append(slot)
        return requests

    def _paged(self) -> list[TinyKvPagedCache]:
        return [slot for slot in self._slots if isinstance(slot, TinyKvPagedCache)]

    def _write(
        self, key: mx.array, value: mx.array, offsets: list[int], overwrite: bool = False
    ) -> tuple[mx.array, mx.array]:
        """Writes tokens at each slot's offset; −1 skips the slot.

        With `overwrite`, writes in place even if in-flight GPU commands still read the buffers,
        because `add_request` would otherwise copy all slots.
        """
        tokens = max(offsets) + key.shape[2]
        self._keys = grow_buffer(self._keys, key, tokens, self.max_seq_len)
        self._values = grow_buffer(self._values, value, tokens, self.max_seq_len)
        self._keys = kernels.cache_write(self._keys, key, offsets, overwrite)
        self._values = kernels.cache_write(self._values, value, offsets, overwrite)
        return self._keys, self._values

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.max_active_requests:
            raise ValueError(
                f"BatchingKvCache: slot must be from 0 to {self.max_active_requests - 1}, got "
                f"{slot}."
            )

    def _check_kind(self, cache: TinyKvFullCache | TinyKvPagedCache) -> None:
        """Rejects a cache of another kind or pool, or one that already has a slot."""
        pool = getattr(cache, "pool", None)
        for other in self._slots:
            if other is not None and getattr(other, "pool", None) is not pool:
                raise ValueError(
                    "BatchingKvCache: the requests of a batch must be all dense or all in the "
                    "pages of one pool."
                )
            if other is cache:
                raise ValueError("BatchingKvCache: the cache already has a slot.")

    def _check_new(self, key: mx.array, value: mx.array) -> None:
        """Rejects new tokens with a wrong shape or beyond `max_seq_len`."""
        B, _, L, _ = key.shape
        if self.max_active_requests != B:
            raise ValueError(
                f"BatchingKvCache: expected {self.max_active_requests} rows, one per slot, got {B}."
            )
        if key.shape != value.shape:
            raise ValueError(
                "BatchingKvCache: key and value must have the same shape, got "
                f"{key.shape} and {value.shape}."
            )
        for slot, length in enumerate(self.lengths):
            if length is not None and length + L > self.max_seq_len:
                raise ValueError(
                    f"BatchingKvCache: slot {slot} has {length} tokens; {L} more exceed "
                    f"max_seq_len {self.max_seq_len}."
                )


def _right_align(buffer: mx.array, lengths: list[int]) -> mx.array:
    """Right-aligns rows, padded to the longest: B×H×capacity×D -> B×H×S_max×D."""
    S_max = max(lengths)
    rows = [buffer[b : b + 1, :, :S] for b, S in enumerate(lengths)]
    return mx.concatenate(
        [mx.pad(x, [(0, 0)] * 2 + [(S_max - x.shape[2], 0), (0, 0)]) for x in rows]
    )
