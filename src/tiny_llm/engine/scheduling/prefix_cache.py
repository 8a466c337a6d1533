"""Prefix cache: radix tree of full KV cache pages, with LRU eviction.

The keys and values of a token depend only on it and the tokens before it. Requests with a common
prefix therefore share its pages, even after the request that computed them has ended:

    root ── "You are a helpful ass" ── "istant. What is RoPE?" ── …
                                    └─ "istant. Who are you?"  ── …

Each edge of the tree is one page of token ids. Only *full* pages are inserted: they are never
written again, so sharing needs no copy. A request that diverges within a page recomputes that page,
at most `page_size` − 1 tokens more than necessary.

The tree holds one reference to each of its pages; each request using a page holds another. Pages
referenced only by the tree are evictable, least recently used first. Eviction needs no search:
requests release their pages from last to first, so children precede their parent in LRU order, and
its head is always a leaf.

Plain Python: no scheduling, no MLX.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from .page_allocator import PageAllocator

PageTokens = tuple[int, ...]


class PrefixNode:
    """A page in the tree.

    Attributes:
        parent: the preceding page; None for the root, which has no page.
        tokens: the page's `page_size` tokens.
        page: page number.
        children: the following pages, by their tokens.
    """

    __slots__ = ("children", "page", "parent", "tokens")

    def __init__(self, parent: "PrefixNode | None", tokens: PageTokens, page: int):
        self.parent = parent
        self.tokens = tokens
        self.page = page
        self.children: dict[PageTokens, PrefixNode] = {}


class PrefixCache:
    """Radix tree of pages, with the LRU order of its unreferenced pages.

    Args:
        allocator: reference counts of the pages.
        page_size: tokens per page.
    """

    def __init__(self, allocator: PageAllocator, page_size: int):
        self.page_size = page_size
        self.root = PrefixNode(None, (), -1)
        self._allocator = allocator
        self._unused: OrderedDict[PrefixNode, None] = OrderedDict()  # least recently used first
        self._num_nodes = 0

    @property
    def num_pages(self) -> int:
        """Number of pages in the tree."""
        return self._num_nodes

    @property
    def num_evictable(self) -> int:
        """Number of pages in the tree referenced by no request."""
        return len(self._unused)

    def match(self, token_ids: Sequence[int]) -> list[PrefixNode]:
        """Returns the longest path of cached pages that is a prefix of `token_ids`.

        At least one token remains to be computed, for its logits: if the whole prompt is cached,
        the last page is left out.
        """
        # [task 3.3.3 match]
        node, path, size = self.root, [], self.page_size
        for start in range(0, (len(token_ids) - 1) // size * size, size):
            child = node.children.get(tuple(token_ids[start : start + size]))
            if child is None:
                break
            path.append(child)
            node = child
        return path
        # [/task 3.3.3 match]

    def acquire(self, path: Sequence[PrefixNode]) -> None:
        """Acquires a reference to each page of a path from `match`."""
        for node in path:
            # [task 3.3.3 acquire]
            self._allocator.share(node.page)
            self._unused.pop(node, None)
            # [/task 3.3.3 acquire]

    def insert(self, parent: PrefixNode, tokens: PageTokens, page: int) -> PrefixNode:
        """Inserts a full page after `parent`; the caller owns both.

        If the tree already has a page with these tokens, the duplicate `page` is freed, and the
        caller becomes an owner of the tree's page, which has the same contents.

        Returns:
            The node of the page that the caller now owns.
        """
        assert len(tokens) == self.page_size, "only full pages are shared"
        # [task 3.3.3 insert]
        known = parent.children.get(tokens)
        if known is not None:
            self.acquire([known])
            self._allocator.free(page)
            return known
        node = PrefixNode(parent, tokens, page)
        parent.children[tokens] = node
        self._allocator.share(page)
        self._num_nodes += 1
        return node
        # [/task 3.3.3 insert]

    def release(self, node: PrefixNode) -> None:
        """Releases a reference to a node and to each of its ancestors, last page first."""
        while node.parent is not None:
            # [task 3.3.3 release]
            self._allocator.free(node.page)
            if self._allocator.ref_count(node.page) == 1:  # the tree itself
                self._unused[node] = None
            node = node.parent
            # [/task 3.3.3 release]

    def evict(self, count: int) -> int:
        """Evicts up to `count` unreferenced pages, least recently used first.

        Returns:
            Number of evicted pages.
        """
        count = max(0, min(count, len(self._unused)))
        for _ in range(count):
            # [task 3.3.3 evict]
            node, _nothing = self._unused.popitem(last=False)
            assert not node.children, "evicted a page before its children"
            assert node.parent is not None
            del node.parent.children[node.tokens]
            self._allocator.free(node.page)
            self._num_nodes -= 1
            # [/task 3.3.3 evict]
        return count

    def nodes(self) -> Iterator[PrefixNode]:
        """Yields all pages in the tree, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check_integrity(self) -> None:
        """Asserts that tree, reference counts and LRU order are consistent."""
        pages = set()
        for node in self.nodes():
            assert node.page not in pages, f"page {node.page} is in the tree twice"
            pages.add(node.page)
            owners = self._allocator.ref_count(node.page)
            assert owners >= 1, f"page {node.page} is in the tree and free"
            assert (owners == 1) == (node in self._unused), f"page {node.page}: {owners} owners"
            assert node.parent is not None
            assert node.parent.children[node.tokens] is node
        assert len(pages) == self._num_nodes
        evicted: set[PrefixNode] = set()
        for node in self._unused:  # evicted in this order, each is a leaf
            assert all(child in evicted for child in node.children.values())
            evicted.add(node)
