"""Prefix cache of blocks, whose pages belong to KV cache groups."""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise

from ..config import KvGroup
from ..page_allocator import PageAllocator
from ..prefix_cache import PageTokens, PrefixCache, PrefixNode


def longest_hit(
    missing: Iterable[Iterable[int]],
    num_before_window: Callable[[int, int], int],
    first: int = 0,
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
        # (node, group) whose pages no request references, least recently used first.
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
