"""The pages of requests: their own come from the allocator, shared ones from the prefix cache.

One rule connects the two: a request's full pages are in the prefix cache, and its last page is its
own. This file does not know the order in which requests are served.
"""

from collections.abc import Iterable, Sequence

from ...errors import OutOfPagesError
from .events import PageCounts
from .page_allocator import PageAllocator
from .prefix_cache import PageTokens, PrefixCache, PrefixNode
from .request import EngineRequest

PageKey = tuple[PrefixNode, PageTokens]  # the page with these tokens after that node


class PageManager:
    """All pages of an engine.

    Args:
        num_pages: how many there are.
        page_size: tokens a page holds.
        enable_prefix_caching: whether requests share pages.
    """

    def __init__(self, num_pages: int, page_size: int, enable_prefix_caching: bool):
        self.page_size = page_size
        self.allocator = PageAllocator(num_pages)
        self.cache = PrefixCache(self.allocator, page_size)
        self._sharing = enable_prefix_caching

    @property
    def num_available(self) -> int:
        """How many pages are free, or can be evicted from the prefix cache."""
        return self.allocator.num_free + self.cache.num_evictable

    def pages_for(self, num_tokens: int) -> int:
        """How many pages hold that many tokens."""
        return -(-num_tokens // self.page_size)

    def tokens_of_page(self, request: EngineRequest, index: int) -> PageTokens:
        """The tokens in page `index` of a request, as far as they are known."""
        return tuple(request.token_ids[index * self.page_size : (index + 1) * self.page_size])

    # ---------------------------------------------------------------- a request gets pages

    def match(self, request: EngineRequest) -> list[PrefixNode]:
        """The pages of the prefix cache that a request can begin with.

        None if tokens of its prompt are still to be scored: that needs their logits.
        """
        is_scored = request.num_scored == request.num_to_score
        return self.cache.match(request.token_ids) if self._sharing and is_scored else []

    def num_cached(self, token_ids: Sequence[int]) -> int:
        """How many of the full pages that tokens begin with are in the prefix cache."""
        return len(self.cache.match([*token_ids, 0])) if self._sharing else 0

    def next_key(self, request: EngineRequest, path: Sequence[PrefixNode]) -> PageKey | None:
        """The next page after `path` that a request could share; None if it has no full one."""
        if not self._sharing or (len(path) + 1) * self.page_size >= request.num_tokens:
            return None
        return path[-1] if path else self.cache.root, self.tokens_of_page(request, len(path))

    def admit(self, request: EngineRequest, path: Sequence[PrefixNode], reserve: int) -> bool:
        """Gives a request the pages of `path` and its own for the rest of its tokens.

        Args:
            request: has no pages yet.
            path: from `match`.
            reserve: how many pages must stay available.

        Returns:
            Whether there were enough pages. If not, nothing has changed.
        """
        # [task 3.3.2 pages]
        self.cache.acquire(path)  # first, so that they are not evicted for the others
        request.last_node = path[-1] if path else self.cache.root
        needed = self.pages_for(request.num_tokens) - len(path)
        if needed + reserve > self.num_available:
            self.cache.release(request.last_node)
            return False
        request.page_ids.extend([node.page for node in path])
        request.page_ids.extend(self._allocate(needed))
        request.num_shared = len(path)
        request.num_computed = len(path) * self.page_size
        return True
        # [/task 3.3.2 pages]

    def grow(self, request: EngineRequest, num_tokens: int) -> None:
        """Gives a request more pages if it needs them for `num_tokens` tokens.

        Raises:
            OutOfPagesError: there are not enough pages; nothing has changed.
        """
        needed = self.pages_for(num_tokens) - len(request.page_ids)
        if needed > 0:
            request.page_ids.extend(self._allocate(needed))

    def grow_if_possible(self, request: EngineRequest, num_tokens: int) -> int:
        """As `grow`, but with as many pages as there are; returns how many tokens they hold."""
        room = (len(request.page_ids) + self.num_available) * self.page_size
        self.grow(request, min(num_tokens, room))
        return len(request.page_ids) * self.page_size

    def _allocate(self, count: int) -> list[int]:
        """Takes free pages; missing ones are evicted from the prefix cache."""
        if count > self.num_available:  # checked first, so that nothing is evicted in vain
            raise OutOfPagesError(
                f"{count} pages were asked for and {self.num_available} can be had."
            )
        self.cache.evict(count - self.allocator.num_free)
        return self.allocator.allocate(count)

    # ---------------------------------------------------------------- and gives them back

    def share_full_pages(self, request: EngineRequest, num_written: int) -> None:
        """Adds the full pages of a request's first `num_written` tokens to the prefix cache."""
        if not self._sharing:
            return
        while (request.num_shared + 1) * self.page_size <= num_written:
            index = request.num_shared
            tokens = self.tokens_of_page(request, index)
            request.last_node = self.cache.insert(
                request.last_node, tokens, request.page_ids[index]
            )
            request.page_ids[index] = request.last_node.page
            request.num_shared += 1

    def release(self, request: EngineRequest) -> None:
        """Takes all pages from a request: its own become free, shared ones stay in the cache."""
        for page in reversed(request.page_ids[request.num_shared :]):
            self.allocator.free(page)
        self.cache.release(request.last_node)
        del request.page_ids[:]
        request.last_node = None
        request.num_shared = 0
        request.num_computed = 0
        request.num_draft_uncomputed = 0

    # ---------------------------------------------------------------- counts and invariants

    def counts(self, running: Iterable[EngineRequest]) -> PageCounts:
        """How many pages are in which state, given the requests that run."""
        shared = {page for one in running for page in one.page_ids[: one.num_shared]}
        return PageCounts(
            free=self.allocator.num_free,
            cached=self.cache.num_evictable,
            used=self.allocator.num_used - self.cache.num_evictable,
            # The tree is one of the owners.
            shared=sum(self.allocator.ref_count(page) > 2 for page in shared),
        )

    def check_integrity(self, running: Sequence[EngineRequest]) -> None:
        """Asserts that every page has exactly the owners that it should have."""
        self.allocator.check_integrity()
        self.cache.check_integrity()
        owners = dict.fromkeys((node.page for node in self.cache.nodes()), 1)
        in_tree = set(owners)
        for request in running:
            pages = request.page_ids
            assert len(set(pages)) == len(pages), f"{request} has the same page twice"
            places = len(pages) * self.page_size
            computed = request.num_computed
            assert computed <= places, f"{request} has {places} places instead of {computed}"
            for index, page in enumerate(pages):
                assert (page in in_tree) == (index < request.num_shared), f"{request}, page {page}"
                owners[page] = owners.get(page, 0) + 1
        for page in range(self.allocator.num_pages):
            expected, actual = owners.get(page, 0), self.allocator.ref_count(page)
            assert actual == expected, f"page {page} has {actual} owners instead of {expected}"
            assert page in in_tree or actual <= 1, f"page {page} is shared outside the prefix cache"
