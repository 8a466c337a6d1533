"""The KV cache: keys and values of earlier tokens, dense or in pages.

A cache knows its arrays and where each token is, and nothing of models, prompts or text.

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
