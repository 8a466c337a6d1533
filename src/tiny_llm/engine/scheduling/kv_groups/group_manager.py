"""Page manager of KV cache groups."""

from collections.abc import Sequence

from ..config import SchedulerConfig
from ..page_manager import PageManager
from ..prefix_cache import PrefixCache, PrefixNode
from ..request import EngineRequest
from .group_cache import BlockNode, GroupPrefixCache


class GroupPageManager(PageManager):
    """Page manager for several KV cache groups, or one with a sliding window.

    Admission allocates full-attention pages for all of a request's tokens, and other groups' pages
    for the window and one step only. Pages before the window are released while a request runs.
    """

    cache: GroupPrefixCache

    def __init__(self, config: SchedulerConfig):
        super().__init__(config)
        self._block_pages = config.block_pages
        sizes = config.page_size, config.max_num_batched_tokens
        self._max_blocks = [
            group.max_blocks(*sizes) if group.window else None for group in config.kv_groups
        ]

    def _new_cache(self, config: SchedulerConfig) -> PrefixCache:
        return GroupPrefixCache(self.allocator, config.page_size, config.kv_groups)

    @property
    def _groups(self) -> range:
        return range(len(self._max_blocks))

    def admit(self, request: EngineRequest, path: Sequence[PrefixNode], reserve: int) -> bool:
        """See `PageManager.admit`; `reserve` is a number of blocks."""
        assert self.states is None, "state slots require one group"
        num_shared, num_blocks = len(path), self.pages_for(request.num_tokens)
        freed = [self.cache.num_before_window(num_shared, group) for group in self._groups]
        ends = [
            num_blocks if limit is None else min(num_blocks, first + limit)
            for first, limit in zip(freed, self._max_blocks, strict=True)
        ]
        for group, first in enumerate(freed):  # before `_extend`, which could evict these pages
            self.cache.acquire_group(path[first:], group)
        request.last_node = path[-1] if path else self.cache.root_of(request.adapter)
        request.num_shared, request.num_freed = num_shared, freed
        request.num_allocated = [num_shared] * len(ends)
        needed = self._num_missing(request.num_allocated, ends)
        if needed + reserve * self._block_pages > self.num_available:
            self._release_shared(request)
            request.num_shared, request.num_freed, request.num_allocated = 0, [], []
            return False
        for index, node in enumerate(path):
            assert isinstance(node, BlockNode)
            request.page_ids.extend(node.pages)
            for group, columns in enumerate(self.cache.columns):
                if index < freed[group]:
                    self._clear(request, index, columns)
        self._extend(request, ends)
        request.num_computed = num_shared * self.page_size
        return True

    def _num_missing(self, allocated: Sequence[int], ends: Sequence[int]) -> int:
        """Number of pages needed to extend each group from `allocated` to `ends` blocks."""
        blocks = zip(allocated, ends, self.cache.sizes, strict=True)
        return sum(max(0, end - first) * size for first, end, size in blocks)

    def _extend(self, request: EngineRequest, ends: Sequence[int]) -> None:
        pages = iter(self._allocate(self._num_missing(request.num_allocated, ends)))
        page_ids, size = request.page_ids, self._block_pages
        page_ids.extend([-1] * (max(ends) * size - len(page_ids)))
        for group, columns in enumerate(self.cache.columns):
            for index in range(request.num_allocated[group], ends[group]):
                for column in range(columns.start, columns.stop):
                    page_ids[index * size + column] = next(pages)
            request.num_allocated[group] = max(request.num_allocated[group], ends[group])

    def _clear(self, request: EngineRequest, index: int, columns: slice) -> None:
        for column in range(columns.start, columns.stop):
            request.page_ids[index * self._block_pages + column] = -1

    def grow(self, request: EngineRequest, num_tokens: int) -> None:
        self._extend(request, [self.pages_for(num_tokens)] * len(self._groups))

    def grow_if_possible(self, request: EngineRequest, num_tokens: int) -> int:
        max_blocks = min(request.num_allocated) + self.num_available // self._block_pages
        self.grow(request, min(num_tokens, max_blocks * self.page_size))
        return self.capacity(request)

    def capacity(self, request: EngineRequest) -> int:
        return min(request.num_allocated) * self.page_size

    def pages_of(self, request: EngineRequest) -> Sequence[int]:
        return [page for page in request.page_ids if page >= 0]

    def shared_pages(self, request: EngineRequest) -> Sequence[int]:
        shared = request.page_ids[: request.num_shared * self._block_pages]
        return [page for page in shared if page >= 0]

    def share_full_pages(self, request: EngineRequest, num_written: int) -> None:
        if not self._sharing:
            return
        while (request.num_shared + 1) * self.page_size <= num_written:
            index = request.num_shared
            block = slice(index * self._block_pages, (index + 1) * self._block_pages)
            tokens, pages = self.tokens_of_page(request, index), request.page_ids[block]
            node = self.cache.insert_block(request.last_node, tokens, pages)
            request.last_node = node
            for column, page in enumerate(pages):
                if page >= 0:
                    request.page_ids[block.start + column] = node.pages[column]
            request.num_shared += 1
            if node.page == pages[0]:  # otherwise the cache already had pages for these tokens
                self.on_share(node)

    def free_before_window(self, request: EngineRequest, num_written: int) -> None:
        """Releases pages that are before each group's window at token `num_written`.

        The request keeps the last shared block, whose node is the parent of the next block's node.
        """
        for group, window in enumerate(self.cache.windows):
            end = (num_written - window + 1) // self.page_size
            if self._sharing:
                end = min(end, request.num_shared - 1)
            if window and end > request.num_freed[group]:
                self._free_before(request, group, end)

    def _free_before(self, request: EngineRequest, group: int, end: int) -> None:
        """Releases a group's pages of blocks before `end`."""
        first, columns = request.num_freed[group], self.cache.columns[group]
        nodes, node = [], request.last_node
        for _ in range(first, request.num_shared):
            nodes.append(node)
            node = node.parent
        for index in range(first, min(end, request.num_allocated[group])):
            if index < request.num_shared:
                self.cache.release_group(nodes[first - index - 1], group)
            else:
                for page in self.request_block(request, index, group):
                    self.allocator.free(page)
            self._clear(request, index, columns)
        request.num_freed[group] = max(first, end)
        request.num_allocated[group] = max(end, request.num_allocated[group])

    def block(self, node: PrefixNode, group: int) -> Sequence[int]:
        assert isinstance(node, BlockNode)
        return node.pages[self.cache.columns[group]]

    def request_block(self, request: EngineRequest, index: int, group: int) -> Sequence[int]:
        start, columns = index * self._block_pages, self.cache.columns[group]
        return request.page_ids[start + columns.start : start + columns.stop]

    def num_before_window(self, num_blocks: int, group: int) -> int:
        return self.cache.num_before_window(num_blocks, group)

    def prepare_load(self, request: EngineRequest, num_blocks: int) -> bool:
        assert not self.cache.windows[0], "the last node must keep pages"
        firsts = [self.cache.num_before_window(num_blocks, group) for group in self._groups]
        allocated = map(max, firsts, request.num_allocated)
        needed = self._num_missing([*allocated], [num_blocks] * len(firsts))
        if needed > self.num_available:
            return False
        for group, first in enumerate(firsts):
            self._free_before(request, group, first)
        self.grow(request, num_blocks * self.page_size)
        return True

    def has_context(self, request: EngineRequest) -> bool:
        return all(
            first <= self.cache.num_before_window(request.num_shared, group)
            for group, first in enumerate(request.num_freed)
        )

    def _release_pages(self, request: EngineRequest) -> None:
        unshared = request.page_ids[request.num_shared * self._block_pages :]
        for page in reversed(unshared):
            if page >= 0:
                self.allocator.free(page)
        if self._sharing:
            self._release_shared(request)
        request.num_freed, request.num_allocated = [], []

    def _release_shared(self, request: EngineRequest) -> None:
        """Releases a request's pages in the prefix cache, last block first."""
        node = request.last_node
        for index in range(request.num_shared - 1, -1, -1):
            for group, first in enumerate(request.num_freed):
                if index >= first:
                    self.cache.release_group(node, group)
            node = node.parent

    def check_integrity(self, running: Sequence[EngineRequest]) -> None:
        super().check_integrity(running)
        for request in running:
            for index in range(len(request.page_ids) // self._block_pages):
                for group in self._groups:
                    pages = self.request_block(request, index, group)
                    first, end = request.num_freed[group], request.num_allocated[group]
                    assert all((page >= 0) == (first <= index < end) for page in pages), (
                        f"{request} must have pages of group {group} for blocks {first} to {end}, "
                        f"got {pages} for block {index}"
                    )
