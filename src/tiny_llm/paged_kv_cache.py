"""The paged KV cache under the name of its chapter; the code is in `kv_cache`."""

from .kv_cache import OutOfPagesError, PagedKvMetadata, TinyKvPagedCache, TinyKvPagedPool

__all__ = ["OutOfPagesError", "PagedKvMetadata", "TinyKvPagedCache", "TinyKvPagedPool"]
