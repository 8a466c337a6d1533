"""KV caches, dense and paged.

Caches manage arrays and token positions; they do not depend on models, prompts or text.

Reading order: full, batching, page_pool, paged, paged_storage, step_plan, planning.
"""

from ..errors import OutOfPagesError
from .batching import BatchingKvCache
from .full import TinyKvCache, TinyKvFullCache
from .page_pool import TinyKvPagedPool
from .paged import PagedKvMetadata, TinyKvPagedCache
from .paged_storage import PagedStorage, RaggedBatch

__all__ = [
    "BatchingKvCache",
    "OutOfPagesError",
    "PagedKvMetadata",
    "PagedStorage",
    "RaggedBatch",
    "TinyKvCache",
    "TinyKvFullCache",
    "TinyKvPagedCache",
    "TinyKvPagedPool",
]
