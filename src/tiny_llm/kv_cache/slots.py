"""Slots of a batched KV cache: lengths, checks, and the buffer of dense requests."""

from dataclasses import dataclass

import mlx.core as mx

from .. import kernels
from .full import TinyKvCache, TinyKvFullCache, grow_buffer
from .paged import TinyKvPagedCache


@dataclass
class DenseSlot:
    """Slot of a dense request, whose tokens are in the batch's buffer."""

    offset: int  # number of cached tokens

    def rewind(self, n: int) -> None:
        """Drops the newest `n` tokens."""
        self.offset -= n


class RequestSlots(TinyKvCache):
    """Base of `BatchingKvCache`: its slots, checks and buffer.

    Args:
        max_active_requests: number of slots B.
        max_seq_len: maximum tokens per request.
    """

    def __init__(self, max_active_requests: int, max_seq_len: int):
        self.max_active_requests = max_active_requests
        self.max_seq_len = max_seq_len
        self._slots: list[DenseSlot | TinyKvPagedCache | None] = [None] * max_active_requests
        # B slots × H heads × capacity × head size D, for dense requests.
        self._keys: mx.array | None = None
        self._values: mx.array | None = None

    @property
    def lengths(self) -> list[int | None]:
        """Number of cached tokens in each slot; None for an idle slot."""
        return [None if slot is None else slot.offset for slot in self._slots]

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
            if request is not None:
                request.rewind(n)

    def release(self) -> None:
        """Frees every slot and releases the memory."""
        for cache in self._paged():
            cache.release()
        self._slots = [None] * self.max_active_requests
        self._keys = None
        self._values = None

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

    def paged_requests(self, L: int) -> list[TinyKvPagedCache | None]:
        """Each slot's paged cache or None; [] if dense or without room for L tokens."""
        requests: list[TinyKvPagedCache | None] = []
        for slot in self._slots:
            if isinstance(slot, DenseSlot) or (slot and slot.offset + L > self.max_seq_len):
                return []
            requests.append(slot)
        return requests

    def _paged(self) -> list[TinyKvPagedCache]:
        return [slot for slot in self._slots if isinstance(slot, TinyKvPagedCache)]

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

    def _check_request(self, cache: TinyKvCache, slot: int) -> TinyKvFullCache | TinyKvPagedCache:
        """Returns `cache`; rejects one that cannot take the slot, see `add_request`."""
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
        pool = getattr(cache, "pool", None)
        for other in self._slots:
            if other is not None and getattr(other, "pool", None) is not pool:
                raise ValueError(
                    "BatchingKvCache: the requests of a batch must be all dense or all in the "
                    "pages of one pool."
                )
            if other is cache:
                raise ValueError("BatchingKvCache: the cache already has a slot.")
        return cache

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


def right_align(buffer: mx.array, lengths: list[int]) -> mx.array:
    """Right-aligns rows, padded to the longest: B×H×capacity×D -> B×H×S_max×D."""
    S_max = max(lengths)
    rows = [buffer[b : b + 1, :, :S] for b, S in enumerate(lengths)]
    return mx.concatenate(
        [mx.pad(x, [(0, 0)] * 2 + [(S_max - x.shape[2], 0), (0, 0)]) for x in rows]
    )
