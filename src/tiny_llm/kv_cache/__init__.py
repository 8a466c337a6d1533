"""The KV cache: keys and values of the past, and which tokens each piece of memory holds.

    full            one request, in one buffer (Week 2)
    batching        several requests, a slot each (Weeks 2 and 3)
    page_pool       memory in pages, handed out one at a time (Week 3)
    paged           one request, in pages of a pool (Week 3)
    paged_storage   the pages of an engine: one block table for all layers
    placement       where a step's tokens go in all layers, and running the layers by that plan
    plans           the plans of a step over a request's own caches

A cache knows its arrays and where each token is. It knows nothing of models, prompts or text.
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
