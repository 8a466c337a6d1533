"""KV cache interface, and Week 2's contiguous cache.

A cache holds one layer's keys and values of one request, so that a step computes only new tokens.
In Qwen3-0.6B, a token takes 2 · 28 layers · 8 heads · 128 elements: 115 KB in bfloat16.
"""

from abc import ABC, abstractmethod

import mlx.core as mx

from .. import kernels
from ..attention import Mask

# Buffers grow by half of their capacity and at least GROWTH_TOKENS, so each token is copied O(1)
# times on average. INITIAL_TOKENS is smaller because many outputs are short: 256 tokens take 29 MB.
INITIAL_TOKENS = 64
GROWTH_TOKENS = 256


class TinyKvCache(ABC):
    """Interface between attention and a KV cache."""

    @abstractmethod
    def update_and_fetch(
        self, key: mx.array, value: mx.array, mask_length: int | None = None, mask: Mask = None
    ) -> tuple[mx.array, mx.array, int | None, Mask]:
        """Appends new keys and values and returns the cache's contents.

        Args:
            key, value: B×H×L×D: L new tokens in each of B sequences, H heads of size D.
            mask_length: number of queries, for caches that build a mask; L if None.
            mask: returned by caches that do not build a mask.

        Returns:
            (keys B×H×S×D, values B×H×S×D, S, mask): all S cached tokens, and the mask to use.
        """

    def append(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array, list[int]]:
        """Appends new tokens and returns the underlying buffers, for flash attention.

        Copies old tokens only to grow a buffer. The default, for caches without buffers, calls
        `update_and_fetch`.

        Returns:
            (keys B×H×C×D, values B×H×C×D, context_lens): buffers with a capacity of C tokens.
            Sequence b occupies the first context_lens[b] positions; the rest is undefined.
        """
        keys, values, *_ = self.update_and_fetch(key, value, key.shape[2], "causal")
        return keys, values, [keys.shape[2]] * keys.shape[0]

    @property
    def state(self) -> list[mx.array]:
        """Arrays to evaluate to materialize all appended tokens; none by default."""
        return []

    @abstractmethod
    def rewind(self, n: int) -> None:
        """Drops the newest `n` tokens.

        Raises:
            ValueError: the cache has fewer than `n` tokens.
        """

    @abstractmethod
    def release(self) -> None:
        """Releases the memory and empties the cache."""


class TinyKvFullCache(TinyKvCache):
    """Contiguous cache with a buffer that grows in steps.

    Attributes:
        offset: number of cached tokens, also the next token's position.
    """

    def __init__(self) -> None:
        self.offset = 0
        self._keys: mx.array | None = None  # B×H×capacity×D
        self._values: mx.array | None = None

    @property
    def key_values(self) -> tuple[mx.array, mx.array] | None:
        """Cached keys and values, each B×H×offset×D; None if empty."""
        if self._keys is None or self._values is None:
            return None
        return self._keys[:, :, : self.offset], self._values[:, :, : self.offset]

    def update_and_fetch(
        self, key: mx.array, value: mx.array, mask_length: int | None = None, mask: Mask = None
    ) -> tuple[mx.array, mx.array, int | None, Mask]:
        """See `TinyKvCache`. Returns the mask unchanged.

        Raises:
            ValueError: the shapes of key and value differ, or do not match the cached ones.
        """
        # [task 2.1.1 fetch]
        keys, values, (S, *_) = self.append(key, value)
        return keys[:, :, :S], values[:, :, :S], S, mask
        # [/task 2.1.1 fetch]

    def append(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array, list[int]]:
        """See `TinyKvCache`; raises the same errors as `update_and_fetch`."""
        if key.shape != value.shape:
            raise ValueError(
                "TinyKvFullCache: key and value must have the same shape, got "
                f"{key.shape} and {value.shape}."
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
        """Each sequence's offset for L new tokens; None if the buffer must grow."""
        if self._keys is None or self.offset + L > self._keys.shape[2]:
            return None
        return [self.offset] * self._keys.shape[0]

    def commit_append(self, keys: mx.array, values: mx.array, L: int) -> None:
        """Stores buffers to which a step plan has appended L tokens per sequence."""
        self._keys, self._values = keys, values
        self.offset += L

    @property
    def state(self) -> list[mx.array]:
        """See `TinyKvCache`."""
        return [x for x in (self._keys, self._values) if x is not None]

    def rewind(self, n: int) -> None:
        """See `TinyKvCache`. Keeps the buffer; new tokens overwrite the dropped ones."""
        if not 0 <= n <= self.offset:
            raise ValueError(f"TinyKvFullCache: cannot rewind by {n} tokens; it has {self.offset}.")
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
    """Returns `buffer`, or a larger copy for `tokens` tokens: B×H×capacity×D.

    Args:
        buffer: None for a new buffer.
        new: B×H×L×D, the new tokens.
        tokens: required tokens per sequence.
        max_capacity: upper bound on the capacity; None if unbounded.
    """
    B, H, _, D = new.shape
    capacity = 0 if buffer is None else buffer.shape[2]
    if buffer is not None and (buffer.shape[0], buffer.shape[1], buffer.shape[3]) != (B, H, D):
        raise ValueError(
            f"KV cache: new keys or values must match the cached shape {buffer.shape} except in "
            f"the third dimension, got {new.shape}."
        )
    if tokens < 1:
        raise ValueError(
            "KV cache: the cache must hold at least 1 token after appending, got "
            f"{tokens} from new keys or values of shape {new.shape}."
        )
    # [task 2.1.5 room]
    if buffer is not None and tokens <= capacity:
        return buffer
    step = INITIAL_TOKENS if capacity == 0 else GROWTH_TOKENS
    growth = max(tokens - capacity, capacity // 2, step)
    growth = -(-growth // step) * step
    if max_capacity is not None:
        growth = min(growth, max_capacity - capacity)
    zeros = mx.zeros((B, H, growth, D), dtype=new.dtype)
    return zeros if buffer is None else mx.concatenate([buffer, zeros], axis=2)
    # [/task 2.1.5 room]
