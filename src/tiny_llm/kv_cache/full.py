"""The KV cache: keys and values of the past are kept, so that a step computes only what is new.

A cache belongs to one layer of one request. A model of 28 layers has 28 of them for a request, and
a token costs 2 · layers · H · D numbers: 115 KB in bfloat16 for Qwen3-0.6B. Here is what all caches
have in common, and the one of Week 2: a request's tokens in one piece of memory.
"""

from abc import ABC, abstractmethod

import mlx.core as mx

from .. import kernels
from ..attention import Mask

# Room is made in steps of at least this many tokens, and by half of what there is: appending one
# token at a time then copies each token a bounded number of times, whatever the length. The first
# step is smaller: 256 tokens of Qwen3-0.6B are 29 MB, and many answers are short.
INITIAL_TOKENS = 64
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

    def append(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array, list[int]]:
        """Appends new keys and values and returns the buffers they are in: for flash attention.

        Nothing but the new tokens is written, and nothing that is there is copied. A cache that has
        no such buffers need not define it: what `update_and_fetch` returns will do.

        Args:
            key: B×H×L×D, the new tokens'.
            value: B×H×L×D.

        Returns:
            (keys B×H×C×D, values B×H×C×D, context_lens): of a sequence's C places the first
            context_lens[b] hold its tokens, and the rest means nothing.
        """
        keys, values, *_ = self.update_and_fetch(key, value, key.shape[2], "causal")
        return keys, values, [keys.shape[2]] * keys.shape[0]

    @property
    def state(self) -> list[mx.array]:
        """The arrays that its tokens are in: evaluating them computes all that was appended.

        None, if a cache does not say: what was appended is then computed when it is needed.
        """
        return []

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
        self._keys = grow_buffer(self._keys, key, end)
        self._values = grow_buffer(self._values, value, end)
        self._keys = kernels.cache_write(self._keys, key, [self.offset] * B)
        self._values = kernels.cache_write(self._values, value, [self.offset] * B)
        self.offset = end
        return self._keys, self._values, [end] * B
        # [/task 2.1.1 append]

    def next_offsets(self, L: int) -> list[int] | None:
        """Where the next L tokens of each sequence go; None if room must be made for them."""
        if self._keys is None or self.offset + L > self._keys.shape[2]:
            return None
        return [self.offset] * self._keys.shape[0]

    def commit_append(self, keys: mx.array, values: mx.array, L: int) -> None:
        """Takes the buffers back after L tokens were written where `next_offsets` said."""
        self._keys, self._values = keys, values
        self.offset += L

    @property
    def state(self) -> list[mx.array]:
        """See `TinyKvCache`."""
        return [x for x in (self._keys, self._values) if x is not None]

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


def grow_buffer(
    buffer: mx.array | None, new: mx.array, tokens: int, max_capacity: int | None = None
) -> mx.array:
    """A buffer B×H×capacity×D with room for `tokens`: the same one, or a larger copy.

    Args:
        buffer: what there is, or None.
        new: B×H×L×D, the new tokens.
        tokens: how many a sequence will have.
        max_capacity: no more will ever be needed; None if there is no bound.
    """
    B, H, _, D = new.shape
    capacity = 0 if buffer is None else buffer.shape[2]
    if buffer is not None and (buffer.shape[0], buffer.shape[1], buffer.shape[3]) != (B, H, D):
        raise ValueError(
            f"KV cache: new keys or values have shape {new.shape}, the cache holds "
            f"{buffer.shape}; only the third dimension may differ."
        )
    if tokens < 1:
        raise ValueError(
            f"KV cache: new keys or values have shape {new.shape}, for {tokens} tokens in all; an "
            "empty cache, or one without a request, has nothing to return."
        )
    # [task 2.1.1 room]
    if buffer is not None and tokens <= capacity:
        return buffer
    step = INITIAL_TOKENS if capacity == 0 else GROWTH_TOKENS
    growth = max(tokens - capacity, capacity // 2, step)
    growth = -(-growth // step) * step
    if max_capacity is not None:
        growth = min(growth, max_capacity - capacity)
    room = mx.zeros((B, H, growth, D), dtype=new.dtype)
    return room if buffer is None else mx.concatenate([buffer, room], axis=2)
    # [/task 2.1.1 room]
