"""KV storage: the engine's pages and recurrent states, in memory and on disk.

Holds the memory; `engine/scheduling` decides which request owns a page, and when pages are evicted.
This package must not depend on models, requests or text. The course's caches are in `kv_cache`.

Reading order: step_plan, layer_cache, paged_storage, int8_rows, page_store, io_thread.
"""

from .paged_storage import KvLayout, LayerKv, PagedStorage, StateShape, StateStorage
from .step_plan import RaggedBatch

__all__ = ["KvLayout", "LayerKv", "PagedStorage", "RaggedBatch", "StateShape", "StateStorage"]
