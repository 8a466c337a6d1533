"""Page manager and prefix cache for models with sliding-window attention.

A request has no pages before its window: -1 takes their place in `page_ids`.
"""

from array import array
from collections.abc import Sequence

from .config import SchedulerConfig
from .page_allocator import PageAllocator
from .page_manager import PageManager
from .prefix_cache import PageTokens, PrefixCache, PrefixNode
from .request import EngineRequest


class SlidingWindowPrefixCache(PrefixCache):
    """Prefix cache for models in which every layer has a sliding window.

    A request needs only the pages in its window, and releases earlier pages while it runs. A page
    may therefore be evicted before its children; its node remains, without a page, until the last
    child is removed. A hit requires only the pages in the window at the end of the prefix. `window`
    is the number of tokens that a query attends to, itself included.
    """

    def __init__(self, allocator: PageAllocator, page_size: int, window: int):
        super().__init__(allocator, page_size)
        self.window = window

    def num_pages_before_window(self, num_pages: int) -> int:
        """Returns how many leading pages of a hit the next tokens do not need.

        The last page is always needed: its node is the parent of the request's next page.
        """
        first_key = num_pages * self.page_size - self.window + 1
        return max(0, min(first_key // self.page_size, num_pages - 1))

    def match(self, token_ids: Sequence[int], root: PrefixNode | None = None) -> list[PrefixNode]:
        """See `PrefixCache`. Nodes before the path's final window may have no page."""
        path = super().match(token_ids, root)
        num_pages, last_missing = 0, -1
        for index, node in enumerate(path):
            if node.page < 0:
                last_missing = index
            if last_missing < self.num_pages_before_window(index + 1):
                num_pages = index + 1
        return path[:num_pages]

    def insert(self, parent: PrefixNode, tokens: PageTokens, page: int) -> PrefixNode:
        """See `PrefixCache`. An existing node without a page takes `page`."""
        known = parent.children.get(tokens)
        if known is None or known.page >= 0:
            return super().insert(parent, tokens, page)
        known.page = page
        self._allocator.share(page)
        self._num_nodes += 1
        return known

    def evict(self, count: int) -> int:
        count = max(0, min(count, len(self._unused)))
        for _ in range(count):
            node, _ = self._unused.popitem(last=False)
            self.on_evict(node)
            self._allocator.free(node.page)
            node.page = -1
            self._num_nodes -= 1
            while node.page < 0 and not node.children and node.parent is not None:
                del node.parent.children[node.tokens]
                node = node.parent
        return count

    def _check_eviction_order(self) -> None:
        """Asserts that each node without a page has children."""
        stack = [child for root in self.roots for child in root.children.values()]
        while stack:
            node = stack.pop()
            assert node.page >= 0 or node.children
            stack.extend(node.children.values())


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
