"""Which request has which pages: its own from the allocator, shared ones from the prefix cache.

Between the two it keeps one rule: a request's full pages are in the prefix cache, its last page is
its own. Knows nothing of the order in which requests are served.
"""

from collections.abc import Iterable, Sequence

from ..errors import OutOfPagesError
from .events import PageCounts
from .page_allocator import PageAllocator
from .prefix_cache import PageTokens, PrefixCache, PrefixNode
from .request import Request

PageKey = tuple[PrefixNode, PageTokens]  # the page with these tokens after that one


class PageManager:
    """All pages of an engine.

    Args:
        num_pages: how many there are.
        page_size: tokens a page holds.
        enable_prefix_cache: whether requests share pages.
    """

    def __init__(self, num_pages: int, page_size: int, enable_prefix_cache: bool):
        self.page_size = page_size
        self.allocator = PageAllocator(num_pages)
        self.cache = PrefixCache(self.allocator, page_size)
        self._sharing = enable_prefix_cache

    @property
    def num_available(self) -> int:
        """Pages that are free, or would be if the prefix cache gave them up."""
        return self.allocator.num_free + self.cache.num_evictable

    def pages_for(self, num_tokens: int) -> int:
        """How many pages hold that many tokens."""
        return -(-num_tokens // self.page_size)

    def tokens_of_page(self, request: Request, index: int) -> PageTokens:
        """The tokens in a request's page number `index`, as far as they are known."""
        return tuple(request.token_ids[index * self.page_size : (index + 1) * self.page_size])

    # ---------------------------------------------------------------- a request gets pages

    def match(self, request: Request) -> list[PrefixNode]:
        """The pages of the prefix cache that a request can begin with."""
        return self.cache.match(request.token_ids) if self._sharing else []

    def next_key(self, request: Request, path: Sequence[PrefixNode]) -> PageKey | None:
        """Which page it would share after `path`, if that were there; None if there is no such."""
        if not self._sharing or (len(path) + 1) * self.page_size >= request.num_tokens:
            return None
        return path[-1] if path else self.cache.root, self.tokens_of_page(request, len(path))

    def admit(self, request: Request, path: Sequence[PrefixNode], reserve: int) -> bool:
        """Gives a request the pages of `path` and its own for the rest of its tokens.

        Args:
            request: has no pages yet.
            path: from `match`.
            reserve: how many pages must stay available.

        Returns:
            False, and nothing has changed, if there are not as many.
        """
        # [task 3.3.2 pages]
        self.cache.acquire(path)  # first, so that they are not evicted for the others
        request.node = path[-1] if path else self.cache.root
        needed = self.pages_for(request.num_tokens) - len(path)
        if needed + reserve > self.num_available:
            self.cache.release(request.node)
            return False
        request.page_ids.extend([node.page for node in path])
        request.page_ids.extend(self._allocate(needed))
        request.num_shared = len(path)
        request.num_computed = len(path) * self.page_size
        return True
        # [/task 3.3.2 pages]

    def grow(self, request: Request, num_tokens: int) -> None:
        """Sees to it that a request has pages for `num_tokens` tokens.

        Raises:
            OutOfPagesError: there are not as many, and it has the pages it had.
        """
        needed = self.pages_for(num_tokens) - len(request.page_ids)
        if needed > 0:
            request.page_ids.extend(self._allocate(needed))

    def grow_if_possible(self, request: Request, num_tokens: int) -> int:
        """As `grow`, with as many pages as there are; returns how many tokens they hold."""
        room = (len(request.page_ids) + self.num_available) * self.page_size
        self.grow(request, min(num_tokens, room))
        return len(request.page_ids) * self.page_size

    def _allocate(self, count: int) -> list[int]:
        """Free pages, after evicting what is lacking from the prefix cache."""
        if count > self.num_available:  # then nothing is evicted in vain
            raise OutOfPagesError(
                f"{count} pages were asked for and {self.num_available} can be had."
            )
        self.cache.evict(count - self.allocator.num_free)
        return self.allocator.allocate(count)

    # ---------------------------------------------------------------- and gives them back

    def share_full_pages(self, request: Request, num_written: int) -> None:
        """Puts the pages among a request's first `num_written` tokens into the prefix cache."""
        if not self._sharing:
            return
        while (request.num_shared + 1) * self.page_size <= num_written:
            index = request.num_shared
            tokens = self.tokens_of_page(request, index)
            request.node = self.cache.insert(request.node, tokens, request.page_ids[index])
            request.page_ids[index] = request.node.page
            request.num_shared += 1

    def release(self, request: Request) -> None:
        """Takes all pages from a request: its own become free, shared ones stay in the cache."""
        for page in reversed(request.page_ids[request.num_shared :]):
            self.allocator.free(page)
        self.cache.release(request.node)
        del request.page_ids[:]
        request.node = None
        request.num_shared = 0
        request.num_computed = 0
        request.num_unguessed = 0

    # ---------------------------------------------------------------- what others see

    def counts(self, running: Iterable[Request]) -> PageCounts:
        """Where the pages are, given the requests that have some."""
        shared = {page for one in running for page in one.page_ids[: one.num_shared]}
        return PageCounts(
            free=self.allocator.num_free,
            cached=self.cache.num_evictable,
            used=self.allocator.num_used - self.cache.num_evictable,
            # One owner is the tree.
            shared=sum(self.allocator.ref_count(page) > 2 for page in shared),
        )

    def check_integrity(self, running: Sequence[Request]) -> None:
        """Asserts that every page has exactly the owners that it should have."""
        self.allocator.check_integrity()
        self.cache.check_integrity()
        owners = dict.fromkeys((node.page for node in self.cache.nodes()), 1)
        in_tree = set(owners)
        for request in running:
            pages = request.page_ids
            assert len(set(pages)) == len(pages), f"{request} has a page twice"
            places = len(pages) * self.page_size
            computed = request.num_computed
            assert computed <= places, f"{request} has {places} places instead of {computed}"
            for index, page in enumerate(pages):
                assert (page in in_tree) == (index < request.num_shared), f"{request}, page {page}"
                owners[page] = owners.get(page, 0) + 1
        for page in range(self.allocator.num_pages):
            expected, actual = owners.get(page, 0), self.allocator.ref_count(page)
            assert actual == expected, f"page {page} has {actual} owners instead of {expected}"
            assert page in in_tree or actual <= 1, f"page {page} is two requests' own"
