"""KV caches, dense and paged.

Caches manage arrays and token positions; they do not depend on models, prompts or text.

Reading order: full, batching, page_pool, paged, state_storage, paged_storage, int8_rows, step_plan,
planning, disk.
"""

from ..errors import OutOfPagesError
from .batching import BatchingKvCache
from .full import TinyKvCache, TinyKvFullCache
from .page_pool import TinyKvPagedPool
from .paged import PagedKvMetadata, TinyKvPagedCache
from .paged_storage import PagedStorage, RaggedBatch
from .state_storage import StateShape, StateStorage

__all__ = [
    "BatchingKvCache",
    "OutOfPagesError",
    "PagedKvMetadata",
    "PagedStorage",
    "RaggedBatch",
    "StateShape",
    "StateStorage",
    "TinyKvCache",
    "TinyKvFullCache",
    "TinyKvPagedCache",
    "TinyKvPagedPool",
]
