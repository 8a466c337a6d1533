"""KV storage: the engine's pages and recurrent states, in memory and on disk.

Holds the memory; `engine/scheduling` decides which request owns a page, and when pages are evicted.
This package must not depend on models, requests or text. The course's caches are in `kv_cache`.

Reading order: kv_layout, state_storage, step_plan, layer_cache, planned_layers,
paged_storage, int8_rows, disk.
"""

from .kv_layout import KvLayout, LayerKv
from .paged_storage import PagedStorage, RaggedBatch
from .state_storage import StateShape, StateStorage

__all__ = ["KvLayout", "LayerKv", "PagedStorage", "RaggedBatch", "StateShape", "StateStorage"]
