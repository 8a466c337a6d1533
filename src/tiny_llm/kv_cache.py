"""The KV cache: keys and values of the past are kept, so that a step computes only what is new.

A cache belongs to one layer of one request. A model of 28 layers has 28 of them for a request, and
a token costs 2 · layers · H · D numbers: 115 KB in bfloat16 for Qwen3-0.6B.
"""

from abc import ABC, abstractmethod

import mlx.core as mx

from . import kernels
from .attention import Mask, causal_mask

# Room is made in steps of at least this many tokens, and by half of what there is: appending one
# token at a time then copies each token a bounded number of times, whatever the length.
GROWTH_TOKENS = 256


class TinyKvCache(ABC):
    """What attention asks of a cache."""

    @abstractmethod
    def update_and_fetch(
        self,
        key: mx.array,
        value: mx.array,
        mask_length: int | None = None,
        mask: Mask = None,
    ) -> tuple[mx.array, mx.array, int | None, Mask]:
        """Appends new keys and values and returns all there are.

        Args:
            key: B×H×L×D, the new tokens'.
            value: B×H×L×D.
            mask_length: how many queries attend, for caches that make a mask; L if None.
            mask: what the caller would mask with.

        Returns:
            (keys B×H×S×D, values B×H×S×D, S, mask): everything to attend to, and with which mask.
        """

    @abstractmethod
    def append(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array, list[int]]:
        """Appends new keys and values and returns the buffers they are in: for flash attention.

        Nothing but the new tokens is written, and nothing that is there is copied.

        Args:
            key: B×H×L×D, the new tokens'.
            value: B×H×L×D.

        Returns:
            (keys B×H×C×D, values B×H×C×D, context_lens): of a sequence's C places the first
            context_lens[b] hold its tokens, and the rest means nothing.
        """

    @abstractmethod
    def rewind(self, n: int) -> None:
        """Forgets the newest `n` tokens.

        Raises:
            ValueError: there are fewer.
        """

    @abstractmethod
    def release(self) -> None:
        """Gives up the memory; the cache is empty afterwards."""


class TinyKvFullCache(TinyKvCache):
    """One request's keys and values in one buffer that grows in steps.

    Attributes:
        offset: how many tokens it holds; the next token's position.
    """

    def __init__(self) -> None:
        self.offset = 0
        self._keys: mx.array | None = None  # B×H×capacity×D
        self._values: mx.array | None = None

    @property
    def key_values(self) -> tuple[mx.array, mx.array] | None:
        """The keys and values held, each B×H×offset×D; None while there are none."""
        if self._keys is None or self._values is None:
            return None
        return self._keys[:, :, : self.offset], self._values[:, :, : self.offset]

    def update_and_fetch(
        self,
        key: mx.array,
        value: mx.array,
        mask_length: int | None = None,
        mask: Mask = None,
    ) -> tuple[mx.array, mx.array, int | None, Mask]:
        """See `TinyKvCache`. The mask is passed through.

        Raises:
            ValueError: key and value, or new and old, do not have the same shape but for L.
        """
        # [task 2.1.1 fetch]
        keys, values, (S, *_) = self.append(key, value)
        return keys[:, :, :S], values[:, :, :S], S, mask
        # [/task 2.1.1 fetch]

    def append(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array, list[int]]:
        """See `TinyKvCache`. Errors as `update_and_fetch`."""
        if key.shape != value.shape:
            raise ValueError(
                f"TinyKvFullCache: key has shape {key.shape} and value {value.shape}; they must be "
                "the same."
            )
        # [task 2.1.1 append]
        B, _, L, _ = key.shape
        end = self.offset + L
        self._keys = _with_room(self._keys, key, end)
        self._values = _with_room(self._values, value, end)
        self._keys = kernels.cache_write(self._keys, key, [self.offset] * B)
        self._values = kernels.cache_write(self._values, value, [self.offset] * B)
        self.offset = end
        return self._keys, self._values, [end] * B
        # [/task 2.1.1 append]

    def rewind(self, n: int) -> None:
        """See `TinyKvCache`. The buffer stays; the next tokens overwrite what was forgotten."""
        if not 0 <= n <= self.offset:
            raise ValueError(f"TinyKvFullCache: cannot forget {n} of {self.offset} tokens.")
        # [task 2.1.1 rewind]
        self.offset -= n
        # [/task 2.1.1 rewind]

    def release(self) -> None:
        """See `TinyKvCache`."""
        # [task 2.1.1 release]
        self.offset = 0
        self._keys = None
        self._values = None
        # [/task 2.1.1 release]


class BatchingKvCache(TinyKvCache):
    """The keys and values of several requests in one buffer, one slot each.

    A slot has its tokens from its first place on; requests have different lengths, and every slot
    has room for the longest. Paged attention, in Week 3, is what does away with that.

        slot 0   k k k . . .
        slot 1   k k k k k k
        slot 2   . . . . . .     idle

    Flash attention reads the buffer as it is, told how long each request is (`append`). Attention
    in plain MLX needs rows of one length, and a mask that hides what they were filled up with: for
    it `update_and_fetch` copies the whole batch, aligned on the right, for every token.

    Args:
        max_active_requests: how many slots there are, B.
        max_seq_len: how many tokens a request may have.

    Attributes:
        lengths: how many tokens each slot's request has; None for an idle slot.
    """

    def __init__(self, max_active_requests: int, max_seq_len: int):
        self.max_active_requests = max_active_requests
        self.max_seq_len = max_seq_len
        self.lengths: list[int | None] = [None] * max_active_requests
        self._keys: mx.array | None = None  # B×H×capacity×D
        self._values: mx.array | None = None

    def add_request(self, cache: TinyKvFullCache, slot: int) -> None:
        """Copies a request's cache, which may hold a prefilled prompt, into an idle slot.

        Raises:
            ValueError: there is no such slot, it is taken, the cache is beyond `max_seq_len`, or it
                is not of one sequence, with the heads that the other requests have.
        """
        self._check_slot(slot)
        if self.lengths[slot] is not None:
            raise ValueError(f"BatchingKvCache: slot {slot} already has a request.")
        if cache.offset > self.max_seq_len:
            raise ValueError(
                f"BatchingKvCache: the request has {cache.offset} tokens, a slot holds "
                f"{self.max_seq_len}."
            )
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
            self._write(mx.broadcast_to(key, rows), mx.broadcast_to(value, rows), offsets)
        self.lengths[slot] = cache.offset
        # [/task 2.6.2 add]

    def remove_request(self, slot: int) -> None:
        """Makes a slot idle. Its room stays, for the next request.

        Raises:
            ValueError: there is no such slot, or it is idle already.
        """
        self._check_slot(slot)
        if self.lengths[slot] is None:
            raise ValueError(f"BatchingKvCache: slot {slot} has no request.")
        # [task 2.6.2 remove]
        self.lengths[slot] = None
        # [/task 2.6.2 remove]

    def append(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array, list[int]]:
        """See `TinyKvCache`: appends one chunk of L tokens to every live slot.

        The rows of idle slots are ignored, and their context length is 0.

        Raises:
            ValueError: not one row a slot, key and value or new and old that do not have the same
                shape but for L, or a request beyond `max_seq_len`.
        """
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
        # [task 2.6.2 append]
        keys, values = self._write(
            key, value, [-1 if length is None else length for length in self.lengths]
        )
        self.lengths = [None if length is None else length + L for length in self.lengths]
        return keys, values, [length or 0 for length in self.lengths]
        # [/task 2.6.2 append]

    def update_and_fetch(
        self,
        key: mx.array,
        value: mx.array,
        mask_length: int | None = None,
        mask: Mask = None,
    ) -> tuple[mx.array, mx.array, int | None, Mask]:
        """Appends one chunk of L tokens to every live slot and assembles the batch.

        Args:
            key: B×H×L×D, one row a slot; the rows of idle slots are ignored.
            value: B×H×L×D.
            mask_length: how many queries attend, at most L; L if None.
            mask: None or "causal"; the cache makes the mask.

        Returns:
            (keys B×H×S_max×D, values B×H×S_max×D, None, mask B×1×L×S_max), where S_max is the
            longest request's length. The mask is causal within each request, and −inf on padding
            and on idle slots.

        Raises:
            ValueError: an array as mask; else as `append`.
        """
        if mask is not None and not isinstance(mask, str):
            raise ValueError("BatchingKvCache: the cache makes the mask; give None or 'causal'.")
        # [task 2.6.2 fetch]
        queries = key.shape[2] if mask_length is None else mask_length
        buffer_keys, buffer_values, lengths = self.append(key, value)
        _, H, _, D = key.shape
        S_max = max(lengths)
        keys, values, masks = [], [], []
        for slot, S in enumerate(lengths):
            padding = mx.zeros((1, H, S_max - S, D), dtype=key.dtype)
            hidden = mx.full((1, 1, queries, S_max - S), -mx.inf, dtype=key.dtype)
            row = slice(slot, slot + 1)
            keys.append(mx.concatenate([padding, buffer_keys[row, :, :S]], axis=2))
            values.append(mx.concatenate([padding, buffer_values[row, :, :S]], axis=2))
            visible = causal_mask(queries, S, key.dtype)[None, None]
            masks.append(mx.concatenate([hidden, visible], axis=3))
        return mx.concatenate(keys), mx.concatenate(values), None, mx.concatenate(masks)
        # [/task 2.6.2 fetch]

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
        self.lengths = [None if length is None else length - n for length in self.lengths]
        # [/task 2.6.2 rewind]

    def release(self) -> None:
        """Makes every slot idle and gives up the memory."""
        self.lengths = [None] * self.max_active_requests
        self._keys = None
        self._values = None

    def _write(
        self, key: mx.array, value: mx.array, offsets: list[int]
    ) -> tuple[mx.array, mx.array]:
        """Puts each slot's new tokens where `offsets` says, and makes room for them before."""
        # [task 2.6.2 write]
        tokens = max(offsets) + key.shape[2]
        self._keys = _with_room(self._keys, key, tokens, self.max_seq_len)
        self._values = _with_room(self._values, value, tokens, self.max_seq_len)
        self._keys = kernels.cache_write(self._keys, key, offsets)
        self._values = kernels.cache_write(self._values, value, offsets)
        return self._keys, self._values
        # [/task 2.6.2 write]

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.max_active_requests:
            raise ValueError(
                f"BatchingKvCache: there is no slot {slot}; slots are 0 … "
                f"{self.max_active_requests - 1}."
            )


def _with_room(
    buffer: mx.array | None, new: mx.array, tokens: int, most: int | None = None
) -> mx.array:
    """A buffer B×H×capacity×D with room for `tokens`: the same one, or a larger copy.

    Args:
        buffer: what there is, or None.
        new: B×H×L×D, the new tokens.
        tokens: how many a sequence will have.
        most: no more will ever be needed; None if there is no bound.
    """
    B, H, _, D = new.shape
    capacity = 0 if buffer is None else buffer.shape[2]
    if buffer is not None and (buffer.shape[0], buffer.shape[1], buffer.shape[3]) != (B, H, D):
        raise ValueError(
            f"KV cache: new keys or values have shape {new.shape}, the cache holds "
            f"{buffer.shape}; only the third dimension may differ."
        )
    # [task 2.1.1 room]
    if tokens <= capacity:
        assert buffer is not None
        return buffer
    growth = max(tokens - capacity, capacity // 2, GROWTH_TOKENS)
    growth = -(-growth // GROWTH_TOKENS) * GROWTH_TOKENS
    if most is not None:
        growth = min(growth, most - capacity)
    room = mx.zeros((B, H, growth, D), dtype=new.dtype)
    return room if buffer is None else mx.concatenate([buffer, room], axis=2)
    # [/task 2.1.1 room]
