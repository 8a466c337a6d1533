"""Paged KV cache: re-exports from `kv_cache` under the course's module name."""

from .kv_cache import (
    BatchingKvCache,
    OutOfPagesError,
    PagedKvMetadata,
    TinyKvPagedCache,
    TinyKvPagedPool,
)

__all__ = [
    "BatchingKvCache",
    "OutOfPagesError",
    "PagedKvMetadata",
    "TinyKvPagedCache",
    "TinyKvPagedPool",
]
