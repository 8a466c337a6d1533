"""The prefix cache: pages found again by the tokens in them.

Keys and values of a token depend on the tokens before it and on nothing else. So a page may serve
every request whose tokens begin alike, and may be kept after the request that computed it:

    root ── "You are a helpful ass" ── "istant. What is RoPE?" ── …
                                    └─ "istant. Who are you?"  ── …

A radix tree on token ids whose edges are one page long. Only *full* pages are in it. A full page is
never written again, so sharing needs no copy: a request whose tokens part from the tree's within a
page computes that page itself, at most `page_size` − 1 tokens more than it had to.

The tree owns one reference of each of its pages, and every request that reads the page another.
What only the tree holds may be evicted, the least recently used first. Evicting needs no search: a
request gives back its pages from the last to the first, so in the order of giving back no page
stands before those that continue it, and the first of them is always a leaf.

Knows tokens and pages, nothing of scheduling or MLX.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from .page_allocator import PageAllocator

PageTokens = tuple[int, ...]


class PrefixNode:
    """A page in the tree.

    Attributes:
        parent: the page before it; None for the root, which is no page.
        tokens: those in the page, `page_size` of them.
        page: its number.
        children: the pages that continue it, by their tokens.
    """

    __slots__ = ("children", "page", "parent", "tokens")

    def __init__(self, parent: "PrefixNode | None", tokens: PageTokens, page: int):
        self.parent = parent
        self.tokens = tokens
        self.page = page
        self.children: dict[PageTokens, PrefixNode] = {}


class PrefixCache:
    """The tree, and the order in which its unused pages go.

    Args:
        allocator: whose pages these are.
        page_size: tokens a page holds.
    """

    def __init__(self, allocator: PageAllocator, page_size: int):
        self.page_size = page_size
        self.root = PrefixNode(None, (), -1)
        self._allocator = allocator
        self._unused: OrderedDict[PrefixNode, None] = OrderedDict()  # least recently used first
        self._num_nodes = 0

    @property
    def num_pages(self) -> int:
        """Pages in the tree."""
        return self._num_nodes

    @property
    def num_evictable(self) -> int:
        """Those that no request holds."""
        return len(self._unused)

    def match(self, token_ids: Sequence[int]) -> list[PrefixNode]:
        """The longest path that these tokens begin with, nearest to the root first.

        One token is always left to compute, or there would be no logits to choose the next by:
        for a prompt that is in the tree as a whole, the last page is left out.
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
        """Makes the caller an owner of the pages of a path from `match`."""
        for node in path:
            # [task 3.3.3 acquire]
            self._allocator.share(node.page)
            self._unused.pop(node, None)
            # [/task 3.3.3 acquire]

    def insert(self, parent: PrefixNode, tokens: PageTokens, page: int) -> PrefixNode:
        """Puts a page that the caller has filled after `parent`, which the caller holds too.

        If the tree has those tokens there already, the caller's page is freed, and the caller owns
        the tree's from now on: both hold the same numbers.

        Returns:
            The node. Its page may be another than `page`.
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
        """Takes the caller's ownership from a node and all before it, the last page first."""
        while node.parent is not None:
            # [task 3.3.3 release]
            self._allocator.free(node.page)
            if self._allocator.ref_count(node.page) == 1:  # only the tree is left
                self._unused[node] = None
            node = node.parent
            # [/task 3.3.3 release]

    def evict(self, count: int) -> int:
        """Frees up to `count` pages that no request holds, least recently used first.

        Returns:
            How many it freed.
        """
        count = max(0, min(count, len(self._unused)))
        for _ in range(count):
            # [task 3.3.3 evict]
            node, _nothing = self._unused.popitem(last=False)
            assert not node.children, "a page is evicted instead of those that continue it"
            assert node.parent is not None
            del node.parent.children[node.tokens]
            self._allocator.free(node.page)
            self._num_nodes -= 1
            # [/task 3.3.3 evict]
        return count

    def nodes(self) -> Iterator[PrefixNode]:
        """All pages in the tree, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check_integrity(self) -> None:
        """Asserts that the tree, the reference counts and the order of eviction agree."""
        pages = set()
        for node in self.nodes():
            assert node.page not in pages, f"page {node.page} is twice in the tree"
            pages.add(node.page)
            owners = self._allocator.ref_count(node.page)
            assert owners >= 1, f"page {node.page} is in the tree and free"
            assert (owners == 1) == (node in self._unused), f"page {node.page}: {owners} owners"
            assert node.parent is not None
            assert node.parent.children[node.tokens] is node
        assert len(pages) == self._num_nodes
        gone: set[PrefixNode] = set()
        for node in self._unused:  # in this order, each is a leaf when its turn comes
            assert all(child in gone for child in node.children.values())
            gone.add(node)
