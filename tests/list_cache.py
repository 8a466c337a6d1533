"""Minimal third-party KV cache for tests."""

import mlx.core as mx

from tiny_llm import TinyKvCache


class ListCache(TinyKvCache):
    """Implements only the abstract methods of `TinyKvCache`."""

    def __init__(self):
        self.chunks = []

    def update_and_fetch(self, key, value, mask_length=None, mask=None):
        self.chunks.append((key, value))
        keys, values = (mx.concatenate(parts, axis=2) for parts in zip(*self.chunks, strict=True))
        return keys, values, keys.shape[2], mask

    def rewind(self, n):
        raise NotImplementedError

    def release(self):
        self.chunks = []
