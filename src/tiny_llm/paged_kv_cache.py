"""Paged KV cache: re-exports from `kv_cache` under the course's module name."""

from .kv_cache import OutOfPagesError, PagedKvMetadata, TinyKvPagedCache, TinyKvPagedPool

__all__ = ["OutOfPagesError", "PagedKvMetadata", "TinyKvPagedCache", "TinyKvPagedPool"]
