"""Prefix cache: radix tree of full KV cache pages, with LRU eviction.

A token's keys and values depend only on the token, its predecessors and the LoRA adapter.
Requests with a common prefix and the same adapter therefore share the prefix's pages, even after
the request that computed them has finished:

    root ── "You are a helpful ass" ── "istant. What is RoPE?" ── …
                                    └─ "istant. Who are you?"  ── …

Each edge is one page of token ids. Only *full* pages are inserted: they are never written again, so
sharing needs no copy. A request that diverges within a page recomputes that page.

The tree holds one reference to each of its pages; each request using a page holds another. Pages
referenced only by the tree are evictable, least recently used first. Eviction needs no search:
requests release their pages from last to first, so children precede their parent in LRU order, and
the least recently used page is always a leaf.

Each LoRA adapter has a separate tree; all trees share one allocator and one LRU order.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from .page_allocator import PageAllocator

PageTokens = tuple[int, ...]


class PrefixNode:
    """A node of the radix tree: one full page.

    Attributes:
        parent: the preceding page; None for a root.
        tokens: the page's `page_size` tokens; in an adapter's root, the adapter index.
        page: page number; −1 for a root.
    """

    __slots__ = ("children", "page", "parent", "tokens")

    def __init__(self, parent: "PrefixNode | None", tokens: PageTokens, page: int):
        self.parent = parent
        self.tokens = tokens
        self.page = page
        self.children: dict[PageTokens, PrefixNode] = {}


class PrefixCache:
    """Radix tree of pages, with unreferenced pages in LRU order.

    Attributes:
        root: the root for requests without an adapter.
        on_evict: callback invoked for each page before its eviction.
    """

    def __init__(self, allocator: PageAllocator, page_size: int):
        self.page_size = page_size
        self.root = PrefixNode(None, (), -1)
        self._roots = {-1: self.root}  # by adapter
        self._allocator = allocator
        self._unused: OrderedDict[PrefixNode, None] = OrderedDict()  # least recently used first
        self._num_nodes = 0
        self.on_evict: Callable[[PrefixNode], None] = lambda node: None

    @property
    def num_pages(self) -> int:
        return self._num_nodes

    @property
    def num_evictable(self) -> int:
        """Number of pages in the tree that no request references."""
        return len(self._unused)

    @property
    def roots(self) -> list[PrefixNode]:
        return list(self._roots.values())

    def root_of(self, adapter: int) -> PrefixNode:
        """Returns the root for an adapter index; −1 means no adapter."""
        return self._roots.setdefault(adapter, PrefixNode(None, (adapter,), -1))

    def match(self, token_ids: Sequence[int], root: PrefixNode | None = None) -> list[PrefixNode]:
        """Returns the longest path from `root` that is a prefix of `token_ids`.

        At least one token must be computed, for its logits: if the whole prompt is cached, the last
        page is omitted.
        """
        # [task 3.4.1 match]
        node, path, size = root or self.root, [], self.page_size
        for start in range(0, (len(token_ids) - 1) // size * size, size):
            child = node.children.get(tuple(token_ids[start : start + size]))
            if child is None:
                break
            path.append(child)
            node = child
        return path
        # [/task 3.4.1 match]

    def acquire(self, path: Sequence[PrefixNode]) -> None:
        """Acquires a reference to each page of a path from `match`."""
        for node in path:
            # [task 3.4.2 acquire]
            self._allocator.share(node.page)
            self._unused.pop(node, None)
            # [/task 3.4.2 acquire]

    def insert(self, parent: PrefixNode, tokens: PageTokens, page: int) -> PrefixNode:
        """Inserts a full page after `parent`; the caller holds references to both.

        Returns its node. If the tree already has a page with these tokens, `page` is a duplicate:
        it is freed, and the caller gets a reference to the tree's page and its node instead.
        """
        assert len(tokens) == self.page_size, f"expected a full page, got {len(tokens)} tokens"
        # [task 3.4.1 insert]
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
        # [/task 3.4.1 insert]

    def release(self, node: PrefixNode) -> None:
        """Releases a reference to a node and each of its ancestors, last page first."""
        while node.parent is not None:
            # [task 3.4.2 release]
            self._allocator.free(node.page)
            if self._allocator.ref_count(node.page) == 1:  # only the tree's reference is left
                self._unused[node] = None
            node = node.parent
            # [/task 3.4.2 release]

    def evict(self, count: int) -> int:
        """Evicts up to `count` unreferenced pages in LRU order; returns their number."""
        count = max(0, min(count, len(self._unused)))
        for _ in range(count):
            self.on_evict(next(iter(self._unused)))
            # [task 3.4.2 evict]
            node, _ = self._unused.popitem(last=False)
            assert not node.children, "evicted a page before its children"
            assert node.parent is not None
            del node.parent.children[node.tokens]
            self._allocator.free(node.page)
            self._num_nodes -= 1
            # [/task 3.4.2 evict]
        return count

    def nodes(self) -> Iterator[PrefixNode]:
        """Yields all nodes, parents first."""
        stack = [child for root in self.roots for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def page_ids(self) -> list[int]:
        return [node.page for node in self.nodes()]

    def check_integrity(self) -> None:
        pages = set()
        for node in self.nodes():
            assert node.page not in pages, f"page {node.page} is in the tree twice"
            pages.add(node.page)
            owners = self._allocator.ref_count(node.page)
            assert owners >= 1, f"page {node.page} is in the tree and free"
            assert (owners == 1) == (node in self._unused), (
                f"page {node.page} has {owners} owners; only pages with one may be evictable"
            )
            assert node.parent is not None
            assert node.parent.children[node.tokens] is node
        assert len(pages) == self._num_nodes
        evicted: set[PrefixNode] = set()
        # Evicting in LRU order must never remove a node that still has children.
        for node in self._unused:
            assert all(child in evicted for child in node.children.values())
            evicted.add(node)
