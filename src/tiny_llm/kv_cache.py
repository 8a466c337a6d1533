"""The KV cache: keys and values of the past are kept, so that a step computes only what is new.

A cache belongs to one layer of one request. A model of 28 layers has 28 of them for a request, and
a token costs 2 · layers · H · D numbers: 115 KB in bfloat16 for Qwen3-0.6B.
"""

from abc import ABC, abstractmethod

import mlx.core as mx

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
        if key.shape != value.shape:
            raise ValueError(
                f"TinyKvFullCache: key has shape {key.shape} and value {value.shape}; they must be "
                "the same."
            )
        L = key.shape[2]
        end = self.offset + L
        self._keys = _with_room(self._keys, key, end)
        self._values = _with_room(self._values, value, end)
        # MLX writes a slice in place when nothing else refers to the buffer.
        self._keys[:, :, self.offset : end] = key
        self._values[:, :, self.offset : end] = value
        self.offset = end
        return self._keys[:, :, :end], self._values[:, :, :end], end, mask

    def rewind(self, n: int) -> None:
        """See `TinyKvCache`. The buffer stays; the next tokens overwrite what was forgotten."""
        if not 0 <= n <= self.offset:
            raise ValueError(f"TinyKvFullCache: cannot forget {n} of {self.offset} tokens.")
        self.offset -= n

    def release(self) -> None:
        """See `TinyKvCache`."""
        self.offset = 0
        self._keys = None
        self._values = None


class BatchingKvCache(TinyKvCache):
    """The caches of several requests behind one interface, one slot each.

    Requests have different lengths. Their keys and values are aligned on the right, so that the
    newest token of every request is in the last column, and a mask hides the padding on the left:

        slot 0   . . . k k k
        slot 1   k k k k k k
        slot 2   . . . . . .     idle

    The batch is assembled anew for every call: simple, and a copy of the whole history for every
    token. Paged attention, in Week 3, is what does away with it.

    Args:
        max_active_requests: how many slots there are, B.
        max_seq_len: how many tokens a request may have.
    """

    def __init__(self, max_active_requests: int, max_seq_len: int):
        self.max_active_requests = max_active_requests
        self.max_seq_len = max_seq_len
        self.slots: list[TinyKvFullCache | None] = [None] * max_active_requests

    def add_request(self, cache: TinyKvFullCache, slot: int) -> None:
        """Puts a request's cache, which may hold a prefilled prompt, into an idle slot.

        Raises:
            ValueError: there is no such slot, it is taken, or the cache is beyond `max_seq_len`.
        """
        self._check_slot(slot)
        if self.slots[slot] is not None:
            raise ValueError(f"BatchingKvCache: slot {slot} already has a request.")
        if cache.offset > self.max_seq_len:
            raise ValueError(
                f"BatchingKvCache: the request has {cache.offset} tokens, a slot holds "
                f"{self.max_seq_len}."
            )
        self.slots[slot] = cache

    def remove_request(self, slot: int) -> None:
        """Makes a slot idle and gives up its cache's memory.

        Raises:
            ValueError: there is no such slot, or it is idle already.
        """
        self._check_slot(slot)
        cache = self.slots[slot]
        if cache is None:
            raise ValueError(f"BatchingKvCache: slot {slot} has no request.")
        cache.release()
        self.slots[slot] = None

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
            ValueError: not one row a slot, an array as mask, or a request beyond `max_seq_len`.
        """
        B, H, L, D = key.shape
        if self.max_active_requests != B:
            raise ValueError(
                f"BatchingKvCache: {B} rows were given for {self.max_active_requests} slots."
            )
        if mask is not None and not isinstance(mask, str):
            raise ValueError("BatchingKvCache: the cache makes the mask; give None or 'causal'.")
        queries = L if mask_length is None else mask_length
        for slot, cache in enumerate(self.slots):
            if cache is not None and cache.offset + L > self.max_seq_len:
                raise ValueError(
                    f"BatchingKvCache: slot {slot} has {cache.offset} tokens; {L} more are beyond "
                    f"{self.max_seq_len}."
                )
        lengths = [0 if cache is None else cache.offset + L for cache in self.slots]
        S_max = max(lengths)
        keys, values, masks = [], [], []
        for slot, cache in enumerate(self.slots):
            left = S_max - lengths[slot]  # columns of padding
            hidden = mx.full((1, 1, queries, left), -mx.inf, dtype=key.dtype)
            padding = mx.zeros((1, H, left, D), dtype=key.dtype)
            if cache is None:
                keys.append(padding)
                values.append(padding)
                masks.append(hidden)
                continue
            row = slice(slot, slot + 1)
            slot_keys, slot_values, S, _ = cache.update_and_fetch(key[row], value[row])
            assert lengths[slot] == S
            visible = causal_mask(queries, S, key.dtype)[None, None]
            keys.append(mx.concatenate([padding, slot_keys], axis=2))
            values.append(mx.concatenate([padding, slot_values], axis=2))
            masks.append(mx.concatenate([hidden, visible], axis=3))
        return mx.concatenate(keys), mx.concatenate(values), None, mx.concatenate(masks)

    def rewind(self, n: int) -> None:
        """Forgets the newest `n` tokens of every live slot."""
        for cache in self.slots:
            if cache is not None:
                cache.rewind(n)

    def release(self) -> None:
        """Makes every slot idle."""
        for slot, cache in enumerate(self.slots):
            if cache is not None:
                self.remove_request(slot)

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.max_active_requests:
            raise ValueError(
                f"BatchingKvCache: there is no slot {slot}; slots are 0 … "
                f"{self.max_active_requests - 1}."
            )


def _with_room(buffer: mx.array | None, new: mx.array, tokens: int) -> mx.array:
    """A buffer B×H×capacity×D with room for `tokens`: the same one, or a larger copy."""
    B, H, _, D = new.shape
    capacity = 0 if buffer is None else buffer.shape[2]
    if buffer is not None and (buffer.shape[0], buffer.shape[1], buffer.shape[3]) != (B, H, D):
        raise ValueError(
            f"TinyKvFullCache: new keys or values have shape {new.shape}, the cache holds "
            f"{buffer.shape}; only the third dimension may differ."
        )
    if tokens <= capacity:
        assert buffer is not None
        return buffer
    growth = max(tokens - capacity, capacity // 2, GROWTH_TOKENS)
    growth = -(-growth // GROWTH_TOKENS) * GROWTH_TOKENS
    room = mx.zeros((B, H, growth, D), dtype=new.dtype)
    return room if buffer is None else mx.concatenate([buffer, room], axis=2)
