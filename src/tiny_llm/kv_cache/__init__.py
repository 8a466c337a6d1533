"""KV caches of the course: one cache per request and layer, dense or paged.

Caches manage arrays and token positions; they do not depend on models, prompts or text. The engine
does not use them: its pages and states are in `kv_storage`.

Reading order: full, page_pool, paged, slots, paged_slots, batching, planning.
"""

from ..attention.paged import PagedKvMetadata
from ..errors import OutOfPagesError
from .batching import BatchingKvCache
from .full import TinyKvCache, TinyKvFullCache
from .page_pool import TinyKvPagedPool
from .paged import TinyKvPagedCache

__all__ = [
    "BatchingKvCache",
    "OutOfPagesError",
    "PagedKvMetadata",
    "TinyKvCache",
    "TinyKvFullCache",
    "TinyKvPagedCache",
    "TinyKvPagedPool",
]
