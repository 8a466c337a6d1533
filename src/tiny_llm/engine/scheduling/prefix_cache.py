"""The prefix cache: pages found again by the tokens in them.

Keys and values of a token depend only on it and the tokens before it. So a page can serve every
request whose tokens begin alike, and can be kept after the request that computed it:

    root ── "You are a helpful ass" ── "istant. What is RoPE?" ── …
                                    └─ "istant. Who are you?"  ── …

This is a radix tree on token ids with edges of one page. Only *full* pages are in it. They are not
written again, so sharing needs no copy. A request whose tokens differ from the tree's within a
page computes that page itself, which is at most `page_size` − 1 tokens more than necessary.

The tree holds one reference to each of its pages, and so does every request that reads the page. A
page that only the tree holds may be evicted, the least recently used first. Evicting needs no
search: a request gives back its pages from the last to the first, so in the order of giving back, a
page comes after those that continue it, and the first page is always a leaf.

This file knows tokens and pages, and nothing of scheduling or MLX.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from .page_allocator import PageAllocator

PageTokens = tuple[int, ...]


class PrefixNode:
    """A page in the tree.

    Attributes:
        parent: the page before it; None for the root, which has no page.
        tokens: the `page_size` tokens in the page.
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
    """The tree, and the order in which its unused pages are evicted.

    Args:
        allocator: of the pages.
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
        """How many pages are in the tree."""
        return self._num_nodes

    @property
    def num_evictable(self) -> int:
        """How many pages of the tree are not held by a request."""
        return len(self._unused)

    def match(self, token_ids: Sequence[int]) -> list[PrefixNode]:
        """The longest path of pages that `token_ids` begins with, from the root on.

        At least one token is left to compute, because the next one is chosen by its logits. So the
        last page is left out if the whole prompt is in the tree.
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
        """Adds a page that the caller has filled after `parent`, which the caller holds too.

        If the tree has the same tokens there already, the caller's page is freed, and the caller
        becomes an owner of the tree's page, which holds the same numbers.

        Returns:
            The node of the page that the caller owns now, `page` or the tree's.
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
        """Gives up the caller's ownership of a node and all before it, the last page first."""
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
            How many were freed.
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
