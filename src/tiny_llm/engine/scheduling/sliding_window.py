"""Page manager for models with sliding-window attention.

A request has no pages before its window: -1 takes their place in `page_ids`.
"""

from array import array
from collections.abc import Sequence

from .config import SchedulerConfig
from .page_manager import PageManager
from .prefix_cache import PrefixCache, PrefixNode, SlidingWindowPrefixCache
from .request import EngineRequest


class SlidingWindowPageManager(PageManager):
    """Page manager that releases the pages before the window of a running request."""

    def __init__(self, config: SchedulerConfig):
        super().__init__(config)
        self._window, self._max_pages = config.window, config.max_pages_per_request

    def _new_cache(self, config: SchedulerConfig) -> PrefixCache:
        return SlidingWindowPrefixCache(self.allocator, config.page_size, config.window)

    def admit(self, request: EngineRequest, path: Sequence[PrefixNode], reserve: int) -> bool:
        """See `PageManager.admit`; without pages before the window or beyond a step's needs."""
        assert isinstance(self.cache, SlidingWindowPrefixCache)
        num_pages_before_window = self.cache.num_pages_before_window(len(path))
        in_window = path[num_pages_before_window:]
        self.cache.acquire(in_window)
        request.last_node = path[-1] if path else self.cache.root_of(request.adapter)
        num_pages = min(
            self.pages_for(request.num_tokens), num_pages_before_window + self._max_pages
        )
        needed = num_pages - len(path)
        if needed + reserve > self.num_available:
            self.cache.release(request.last_node, len(in_window))
            return False
        request.page_ids.extend([-1] * num_pages_before_window)
        request.page_ids.extend([node.page for node in in_window])
        request.page_ids.extend(self._allocate(needed))
        request.num_freed, request.num_shared = num_pages_before_window, len(path)
        request.num_computed = len(path) * self.page_size
        return True

    def free_before_window(self, request: EngineRequest, num_written: int) -> None:
        """Releases pages that end before the sliding window of token `num_written`.

        The request keeps the last shared page, whose node is the parent of the next page's node.
        """
        first, end = request.num_freed, max(0, num_written - self._window + 1) // self.page_size
        if self._sharing:
            end = min(end, request.num_shared - 1)
        if end <= first:
            return
        if self._sharing:
            node = request.last_node
            for _ in range(request.num_shared - end):
                node = node.parent
            self.cache.release(node, end - first)
        else:
            for page in request.page_ids[first:end]:
                self.allocator.free(page)
        request.page_ids[first:end] = array("i", [-1] * (end - first))
        request.num_freed = end
