"""KV cache groups: prefix cache and pages of layers with different windows or rows.

A request's `page_ids` list each block's pages by group. −1 marks a page that is before the group's
window and released, or not yet allocated:

    block                  0      1      2      3
    full attention         7      4      9      2
    window of 1.5 blocks  −1     −1      5      8

Groups are ordered by decreasing window, full attention first, so a block's other pages are useless
without those of the first group. All groups share a free list and the prefix cache's LRU order.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise

from .config import KvGroup, SchedulerConfig
from .page_allocator import PageAllocator
from .page_manager import PageManager
from .prefix_cache import PageTokens, PrefixCache, PrefixNode
from .request import EngineRequest


def longest_hit(
    missing: Iterable[Iterable[int]], num_before_window: Callable[[int, int], int], first: int = 0
) -> int:
    """Returns the length in blocks of the longest prefix with all pages in its final windows.

    Args:
        missing: groups without pages of each block, from block `first` on.
        num_before_window: see `GroupPrefixCache`.
    """
    num_blocks, last_missing = first, dict[int, int]()
    for index, groups in enumerate(missing, first):
        last_missing |= dict.fromkeys(groups, index)
        if all(last < num_before_window(index + 1, group) for group, last in last_missing.items()):
            num_blocks = index + 1
    return num_blocks


class BlockNode(PrefixNode):
    """Radix tree node: one full block, which may lack the pages of some groups.

    Attributes:
        pages: the block's pages, as in a request's `page_ids`; `page` is pages[0].
    """

    __slots__ = ("pages",)

    def __init__(self, parent: PrefixNode, tokens: PageTokens, pages: array):
        super().__init__(parent, tokens, pages[0])
        self.pages = pages


class GroupPrefixCache(PrefixCache):
    """Prefix cache of blocks, whose pages are acquired, released and evicted by group.

    Attributes:
        windows: each group's window; 0 for full attention.
        sizes: number of pages per block of each group.
        columns: each group's slice of a block's pages.

    A hit requires the pages in each group's window at the end of the prefix. Evicting a node's
    pages of the first group evicts those of all groups. Without full attention, a node may lose all
    pages before its children do; it remains until the last child is removed.
    """

    def __init__(self, allocator: PageAllocator, page_size: int, groups: Sequence[KvGroup]):
        super().__init__(allocator, page_size)
        self.windows = [group.window for group in groups]
        self.sizes = [group.num_pages for group in groups]
        self.columns = [slice(*pair) for pair in pairwise(accumulate(self.sizes, initial=0))]
        # (node, group) pairs whose pages no request references, least recently used first.
        self._unused_pages: OrderedDict[tuple[BlockNode, int], None] = OrderedDict()
        self._num_pages = self._num_evictable = 0

    @property
    def num_pages(self) -> int:
        return self._num_pages

    @property
    def num_evictable(self) -> int:
        return self._num_evictable

    def num_before_window(self, num_blocks: int, group: int) -> int:
        """Number of leading blocks of a hit that are before the next token's window.

        The last block never counts, because its node is the parent of the request's next block.
        """
        if not self.windows[group]:
            return 0
        first_key = num_blocks * self.page_size - self.windows[group] + 1
        return max(0, min(first_key // self.page_size, num_blocks - 1))

    def match(self, token_ids: Sequence[int], root: PrefixNode | None = None) -> list[PrefixNode]:
        """See `PrefixCache`. Nodes before a group's final window may lack the group's pages."""
        path = super().match(token_ids, root)
        missing = map(self._missing_groups, path)
        return path[: longest_hit(missing, self.num_before_window)]

    def _missing_groups(self, node: PrefixNode) -> list[int]:
        assert isinstance(node, BlockNode)
        starts = enumerate(columns.start for columns in self.columns)
        return [group for group, start in starts if node.pages[start] < 0]

    def acquire_group(self, path: Iterable[PrefixNode], group: int) -> None:
        """Acquires references to the nodes' pages of a group."""
        for node in path:
            assert isinstance(node, BlockNode)
            if (node, group) in self._unused_pages:
                del self._unused_pages[node, group]
                self._num_evictable -= self.sizes[group]
            for page in node.pages[self.columns[group]]:
                self._allocator.share(page)

    def release_group(self, node: PrefixNode, group: int) -> None:
        """Releases a reference to a node's pages of a group."""
        assert isinstance(node, BlockNode)
        columns = self.columns[group]
        for page in node.pages[columns]:
            self._allocator.free(page)
        if self._allocator.ref_count(node.pages[columns.start]) == 1:  # only the tree's remains
            self._unused_pages[node, group] = None
            self._num_evictable += self.sizes[group]

    def insert_block(self, parent: PrefixNode, tokens: PageTokens, pages: array) -> BlockNode:
        """Inserts a full block after `parent`; the caller holds references to both.

        Returns the block's node. If the node already has a group's pages, the duplicates in `pages`
        are freed and the caller acquires the node's. `pages` may lack some groups.
        """
        assert len(tokens) == self.page_size, f"expected a full block, got {len(tokens)} tokens"
        node = parent.children.get(tokens)
        if node is None:
            node = parent.children[tokens] = BlockNode(
                parent, tokens, array("i", [-1] * len(pages))
            )
        assert isinstance(node, BlockNode)
        for group, columns in enumerate(self.columns):
            if pages[columns.start] < 0:
                continue
            if node.pages[columns.start] >= 0:
                self.acquire_group([node], group)
                for page in pages[columns]:
                    self._allocator.free(page)
            else:
                node.pages[columns] = pages[columns]
                for page in pages[columns]:
                    self._allocator.share(page)
                self._num_pages += self.sizes[group]
        node.page = node.pages[0]
        return node

    def evict(self, count: int) -> int:
        """Evicts at least `count` unreferenced pages, if possible; returns the number evicted."""
        before = self._num_pages
        while before - self._num_pages < count and self._unused_pages:
            (node, group), _ = self._unused_pages.popitem(last=False)
            self._drop(node, group)
            if group == 0:
                self.on_evict(node)
                for other in range(1, len(self.columns)):
                    if (node, other) in self._unused_pages:
                        del self._unused_pages[node, other]
                        self._drop(node, other)
            self._remove_empty(node)
        return before - self._num_pages

    def _drop(self, node: BlockNode, group: int) -> None:
        columns, size = self.columns[group], self.sizes[group]
        for page in node.pages[columns]:
            self._allocator.free(page)
        node.pages[columns] = array("i", [-1] * size)
        node.page = node.pages[0]
        self._num_pages -= size
        self._num_evictable -= size

    @staticmethod
    def _remove_empty(node: PrefixNode) -> None:
        while node.page < 0 and not node.children and node.parent is not None:
            del node.parent.children[node.tokens]
            node = node.parent

    def page_ids(self) -> list[int]:
        nodes = [node for node in self.nodes() if isinstance(node, BlockNode)]
        return [page for node in nodes for page in node.pages if page >= 0]

    def check_integrity(self) -> None:
        num_unused = 0
        for node in self.nodes():
            assert isinstance(node, BlockNode)
            assert node.parent is not None
            assert node.parent.children[node.tokens] is node
            assert node.page == node.pages[0]
            assert node.page >= 0 or node.children
            for group, columns in enumerate(self.columns):
                pages = node.pages[columns]
                assert len({page < 0 for page in pages}) == 1
                owners = {self._allocator.ref_count(page) for page in pages if page >= 0}
                assert len(owners) <= 1, f"the pages {pages} have {owners} owners"
                assert 0 not in owners, f"the pages {pages} are in the tree and free"
                assert (owners == {1}) == ((node, group) in self._unused_pages), (
                    f"the pages {pages} have {owners} owners; only pages with one are evictable"
                )
                num_unused += len(pages) if owners == {1} else 0
            if not self.windows[0]:
                assert node.page >= 0, "a block was evicted before its children"
        page_ids = self.page_ids()
        assert len(set(page_ids)) == len(page_ids) == self._num_pages, "a page is in the tree twice"
        assert num_unused == self._num_evictable


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
