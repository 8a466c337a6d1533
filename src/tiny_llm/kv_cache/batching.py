"""The KV caches of several requests, seen as one: a slot for each.

The cache of one request is in `full.py` (one piece of memory) or `paged.py`
(pages of a pool). A batch has requests of one of the two kinds.
"""

from dataclasses import dataclass

import mlx.core as mx

from .. import kernels
from ..attention import Mask, causal_mask, is_none_or_causal
from .full import TinyKvCache, TinyKvFullCache, grow_buffer
from .paged import (
    OutOfPagesError,
    PagedKvMetadata,
    TinyKvPagedCache,
    check_paged_mask,
    paged_metadata,
)

__all__ = ["BatchingKvCache", "TinyKvCache", "TinyKvFullCache"]


@dataclass
class _DenseSlot:
    """A request whose tokens are in the batch's own buffer: how many there are."""

    offset: int


class BatchingKvCache(TinyKvCache):
    """The keys and values of several requests, one slot each.

    Dense requests are copied into one buffer. A slot has its tokens from its first place on;
    requests have different lengths, and every slot has room for the longest:

        slot 0   k k k . . .
        slot 1   k k k k k k
        slot 2   . . . . . .     idle

    Flash attention reads the buffer as it is, told how long each request is (`append`). Attention
    in plain MLX needs rows of one length, and a mask that hides what they were filled up with: for
    it `update_and_fetch` copies the whole batch, aligned on the right, for every token.

    Paged requests (Week 3) stay where they are: a slot takes over the request's cache, and
    `update_and_fetch_paged` tells paged attention all slots' pages. Nothing is copied, and no slot
    has room that it does not use.

    Args:
        max_active_requests: how many slots there are, B.
        max_seq_len: how many tokens a request may have.
    """

    def __init__(self, max_active_requests: int, max_seq_len: int):
        self.max_active_requests = max_active_requests
        self.max_seq_len = max_seq_len
        self._slots: list[_DenseSlot | TinyKvPagedCache | None] = [None] * max_active_requests
        self._keys: mx.array | None = None  # B×H×capacity×D, of dense requests
        self._values: mx.array | None = None

    @property
    def lengths(self) -> list[int | None]:
        """How many tokens each slot's request has; None for an idle slot."""
        return [None if slot is None else slot.offset for slot in self._slots]

    def add_request(self, cache: TinyKvCache, slot: int) -> None:
        """Puts a request, whose prompt may be prefilled, into an idle slot.

        A `TinyKvFullCache` is copied. A `TinyKvPagedCache` is taken over: it belongs to the slot
        now, which returns its pages to the pool when the request is removed.

        Raises:
            ValueError: there is no such slot, it is taken, the cache is beyond `max_seq_len`, it
                is not of one sequence, with the heads that the other requests have; or dense where
                they are paged, or paged where they are dense or in another pool.
        """
        self._check_slot(slot)
        if self._slots[slot] is not None:
            raise ValueError(f"BatchingKvCache: slot {slot} already has a request.")
        if not isinstance(cache, TinyKvFullCache | TinyKvPagedCache):
            raise ValueError(
                "BatchingKvCache: a slot takes a TinyKvFullCache or a TinyKvPagedCache, not a "
                f"{type(cache).__name__}."
            )
        if cache.offset > self.max_seq_len:
            raise ValueError(
                f"BatchingKvCache: the request has {cache.offset} tokens, a slot holds "
                f"{self.max_seq_len}."
            )
        self._check_kind(cache)
        if isinstance(cache, TinyKvPagedCache):
            # [task 3.2.4 add]
            self._slots[slot] = cache
            return
            # [/task 3.2.4 add]
        # [task 2.6.2 add]
        if cache.key_values is not None:
            key, value = cache.key_values
            if key.shape[0] != 1:
                raise ValueError(
                    f"BatchingKvCache: a slot is for one sequence, the request has {key.shape[0]}."
                )
            offsets = [-1] * self.max_active_requests
            offsets[slot] = 0
            rows = (self.max_active_requests, *key.shape[1:])
            keys, values = mx.broadcast_to(key, rows), mx.broadcast_to(value, rows)
            # Steps of the other slots may still run on a GPU. They do not read this slot's row.
            self._write(keys, values, offsets, overwrite=True)
        self._slots[slot] = _DenseSlot(cache.offset)
        # [/task 2.6.2 add]

    def remove_request(self, slot: int) -> None:
        """Makes a slot idle. A dense one's room stays, for the next request; pages are returned.

        Raises:
            ValueError: there is no such slot, or it is idle already.
        """
        self._check_slot(slot)
        request = self._slots[slot]
        if request is None:
            raise ValueError(f"BatchingKvCache: slot {slot} has no request.")
        if isinstance(request, TinyKvPagedCache):
            # [task 3.2.4 remove]
            request.release()
            # [/task 3.2.4 remove]
        # [task 2.6.2 remove]
        self._slots[slot] = None
        # [/task 2.6.2 remove]

    def append(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array, list[int]]:
        """See `TinyKvCache`: appends one chunk of L tokens to every live slot.

        The rows of idle slots are ignored, and their context length is 0.

        Raises:
            ValueError: not one row a slot, key and value or new and old that do not have the same
                shape but for L, a request beyond `max_seq_len`, or paged requests.
        """
        self._check_new(key, value)
        if self._paged():
            raise ValueError(
                "BatchingKvCache: paged requests are in no buffer; use update_and_fetch_paged."
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
        self,
        keys: mx.array,
        values: mx.array,
        mask_length: int | None = None,
        mask: Mask = None,
    ) -> tuple[mx.array, mx.array, int | None, Mask]:
        """Appends one chunk of L tokens to every live slot and assembles the batch.

        Args:
            keys: B×H×L×D, one row a slot; the rows of idle slots are ignored.
            values: B×H×L×D.
            mask_length: how many queries attend, at most L; L if None.
            mask: None or "causal"; the cache makes the mask.

        Returns:
            (keys B×H×S_max×D, values B×H×S_max×D, None, mask B×1×L×S_max), where S_max is the
            longest request's length. The mask is causal within each request, and −inf on padding
            and on idle slots.

        Raises:
            ValueError: another mask, or no request; else as `append`.
        """
        if not is_none_or_causal(mask):
            raise ValueError("BatchingKvCache: the cache makes the mask; give None or 'causal'.")
        if all(length is None for length in self.lengths):
            raise ValueError(
                "BatchingKvCache: there is no request; add_request puts one in a slot."
            )
        # [task 2.6.2 fetch]
        _, H, L, D = keys.shape
        queries = L if mask_length is None else mask_length
        buffer_keys, buffer_values, lengths = self.append(keys, values)
        S_max = max(lengths)
        all_keys, all_values, masks = [], [], []
        for slot, S in enumerate(lengths):
            padding = mx.zeros((1, H, S_max - S, D), dtype=keys.dtype)
            hidden = mx.full((1, 1, queries, S_max - S), -mx.inf, dtype=keys.dtype)
            row = slice(slot, slot + 1)
            all_keys.append(mx.concatenate([padding, buffer_keys[row, :, :S]], axis=2))
            all_values.append(mx.concatenate([padding, buffer_values[row, :, :S]], axis=2))
            visible = causal_mask(queries, S, keys.dtype)[None, None]
            masks.append(mx.concatenate([hidden, visible], axis=3))
        return mx.concatenate(all_keys), mx.concatenate(all_values), None, mx.concatenate(masks)
        # [/task 2.6.2 fetch]

    def update_and_fetch_paged(
        self,
        key: mx.array,
        value: mx.array,
        mask_length: int | None = None,
        mask: Mask = None,
    ) -> PagedKvMetadata:
        """Appends one chunk of L tokens to every live slot's pages and says where all are.

        Args:
            key: B×H×L×D, one row a slot; the rows of idle slots are ignored.
            value: B×H×L×D.
            mask_length: not used; the causal rule needs no mask of some length.
            mask: None or "causal", passed through.

        Returns:
            A row a slot; an idle one has context length 0 and a block table of −1.

        Raises:
            ValueError: an array as mask, dense requests, or no request at all; else as `append`.
            OutOfPagesError: the pool has too few for all; nothing was appended.
        """
        check_paged_mask(mask)
        self._check_new(key, value)
        live = self._paged()
        if not live or any(isinstance(slot, _DenseSlot) for slot in self._slots):
            raise ValueError("BatchingKvCache: there are no paged requests; use update_and_fetch.")
        pool = live[0].pool
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
        """Where the next L tokens of each slot go, −1 for an idle one.

        None if room must be made for them, or requests are paged.
        """
        if self._keys is None or self._paged():
            return None
        offsets = [-1 if length is None else length for length in self.lengths]
        return offsets if max(offsets) + L <= self._keys.shape[2] else None

    def commit_append(self, keys: mx.array, values: mx.array, L: int) -> None:
        """Takes the buffers back after L tokens were written where `next_offsets` said."""
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
        """Forgets the newest `n` tokens of every live slot.

        Raises:
            ValueError: a slot has fewer.
        """
        for slot, length in enumerate(self.lengths):
            if length is not None and not 0 <= n <= length:
                raise ValueError(
                    f"BatchingKvCache: cannot forget {n} of slot {slot}'s {length} tokens."
                )
        # [task 2.6.2 rewind]
        for request in self._slots:
            if isinstance(request, TinyKvPagedCache):
                request.rewind(n)
            elif request is not None:
                request.offset -= n
        # [/task 2.6.2 rewind]

    def release(self) -> None:
        """Makes every slot idle and gives up the memory."""
        for cache in self._paged():
            cache.release()
        self._slots = [None] * self.max_active_requests
        self._keys = None
        self._values = None

    def paged_requests(self, L: int) -> list[TinyKvPagedCache | None]:
        """The paged request of each slot, None for an idle one, if all may have L more tokens.

        An empty list if one may not, or requests are dense.
        """
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
        """Puts each slot's new tokens where `offsets` says, and makes room for them before.

        Args:
            key: B×H×L×D, one row a slot.
            value: B×H×L×D.
            offsets: the place of each slot's first new token; −1 leaves the slot as it is.
            overwrite: as `cache_write` has it: the buffers are written in place even if a GPU's
                commands that were sent before still read them. `add_request` needs it, so as not to
                copy all slots for one; `append` does without.

        Returns:
            The buffers of keys and of values, which are also kept.
        """
        # [task 2.6.2 write]
        tokens = max(offsets) + key.shape[2]
        self._keys = grow_buffer(self._keys, key, tokens, self.max_seq_len)
        self._values = grow_buffer(self._values, value, tokens, self.max_seq_len)
        self._keys = kernels.cache_write(self._keys, key, offsets, overwrite)
        self._values = kernels.cache_write(self._values, value, offsets, overwrite)
        return self._keys, self._values
        # [/task 2.6.2 write]

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.max_active_requests:
            raise ValueError(
                f"BatchingKvCache: there is no slot {slot}; slots are 0 … "
                f"{self.max_active_requests - 1}."
            )

    def _check_kind(self, cache: TinyKvFullCache | TinyKvPagedCache) -> None:
        """All requests are dense, or all are in the pages of one pool."""
        pool = getattr(cache, "pool", None)
        for other in self._slots:
            if other is not None and getattr(other, "pool", None) is not pool:
                raise ValueError(
                    "BatchingKvCache: the requests of a batch are either all dense or all in the "
                    "pages of one pool."
                )
            if other is cache:
                raise ValueError("BatchingKvCache: this cache has a slot already.")

    def _check_new(self, key: mx.array, value: mx.array) -> None:
        """New tokens: one row a slot, and no request beyond what a slot may have."""
        B, _, L, _ = key.shape
        if self.max_active_requests != B:
            raise ValueError(
                f"BatchingKvCache: {B} rows were given for {self.max_active_requests} slots."
            )
        if key.shape != value.shape:
            raise ValueError(
                f"BatchingKvCache: key has shape {key.shape} and value {value.shape}; they must be "
                "the same."
            )
        for slot, length in enumerate(self.lengths):
            if length is not None and length + L > self.max_seq_len:
                raise ValueError(
                    f"BatchingKvCache: slot {slot} has {length} tokens; {L} more are beyond "
                    f"{self.max_seq_len}."
                )
