"""PageManager: page ownership, allocation and prefix sharing per request.

Invariant: a request's full pages are in the prefix cache; its last, partial page is not shared.
Independent of the scheduling order.
"""

from collections.abc import Iterable, Sequence

from ...errors import OutOfPagesError
from .events import PageCounts
from .page_allocator import PageAllocator
from .prefix_cache import PageTokens, PrefixCache, PrefixNode
from .request import EngineRequest

PageKey = tuple[PrefixNode, PageTokens]  # a page: its parent node and its tokens


class PageManager:
    """Page ownership of all requests: allocator plus prefix cache.

    Args:
        num_pages: number of pages.
        page_size: tokens per page.
        enable_prefix_caching: whether requests share pages.
    """

    def __init__(self, num_pages: int, page_size: int, enable_prefix_caching: bool):
        self.page_size = page_size
        self.allocator = PageAllocator(num_pages)
        self.cache = PrefixCache(self.allocator, page_size)
        self._sharing = enable_prefix_caching

    @property
    def num_available(self) -> int:
        """Number of pages that are free or evictable from the prefix cache."""
        return self.allocator.num_free + self.cache.num_evictable

    def pages_for(self, num_tokens: int) -> int:
        """Returns the number of pages for `num_tokens` tokens."""
        return -(-num_tokens // self.page_size)

    def tokens_of_page(self, request: EngineRequest, index: int) -> PageTokens:
        """Returns the tokens of page `index` of a request; fewer than a page at the end."""
        return tuple(request.token_ids[index * self.page_size : (index + 1) * self.page_size])

    # ---------------------------------------------------------------- allocation

    def match(self, request: EngineRequest) -> list[PrefixNode]:
        """Returns the prefix cache hit of a request.

        Empty while prompt tokens remain to be scored: their logits must be computed.
        """
        is_scored = request.num_scored == request.num_to_score
        return self.cache.match(request.token_ids) if self._sharing and is_scored else []

    def num_cached(self, token_ids: Sequence[int]) -> int:
        """Returns the number of leading full pages of `token_ids` in the prefix cache."""
        return len(self.cache.match([*token_ids, 0])) if self._sharing else 0

    def next_key(self, request: EngineRequest, path: Sequence[PrefixNode]) -> PageKey | None:
        """Returns the key of the request's next full page after `path`, or None."""
        if not self._sharing or (len(path) + 1) * self.page_size >= request.num_tokens:
            return None
        return path[-1] if path else self.cache.root, self.tokens_of_page(request, len(path))

    def admit(self, request: EngineRequest, path: Sequence[PrefixNode], reserve: int) -> bool:
        """Assigns the shared pages of `path` and new pages for the remaining tokens.

        Args:
            request: a request without pages.
            path: prefix cache hit from `match`.
            reserve: pages that must stay available.

        Returns:
            False if too few pages are available; ownership is then unchanged.
        """
        # [task 3.3.2 pages]
        self.cache.acquire(path)  # first: `_allocate` must not evict them
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
        """Allocates pages until the request has room for `num_tokens` tokens.

        Raises:
            OutOfPagesError: too few pages are available; ownership is unchanged.
        """
        needed = self.pages_for(num_tokens) - len(request.page_ids)
        if needed > 0:
            request.page_ids.extend(self._allocate(needed))

    def grow_if_possible(self, request: EngineRequest, num_tokens: int) -> int:
        """Like `grow`, bounded by the available pages; returns the capacity in tokens."""
        room = (len(request.page_ids) + self.num_available) * self.page_size
        self.grow(request, min(num_tokens, room))
        return len(request.page_ids) * self.page_size

    def _allocate(self, count: int) -> list[int]:
        """Allocates pages; evicts from the prefix cache if too few are free."""
        if count > self.num_available:  # checked first, to avoid a useless eviction
            raise OutOfPagesError(
                f"{count} pages were requested, {self.num_available} are free or evictable."
            )
        self.cache.evict(count - self.allocator.num_free)
        return self.allocator.allocate(count)

    # ---------------------------------------------------------------- sharing and release

    def share_full_pages(self, request: EngineRequest, num_written: int) -> None:
        """Inserts the full pages of the first `num_written` tokens into the prefix cache."""
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
        """Releases all pages of a request; shared ones stay in the prefix cache."""
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
        """Returns page counts by state, given the running requests."""
        shared = {page for request in running for page in request.page_ids[: request.num_shared]}
        return PageCounts(
            free=self.allocator.num_free,
            cached=self.cache.num_evictable,
            used=self.allocator.num_used - self.cache.num_evictable,
            # The prefix cache is one of the owners.
            shared=sum(self.allocator.ref_count(page) > 2 for page in shared),
        )

    def check_integrity(self, running: Sequence[EngineRequest]) -> None:
        """Asserts that every page has exactly its expected owners."""
        self.allocator.check_integrity()
        self.cache.check_integrity()
        owners = dict.fromkeys((node.page for node in self.cache.nodes()), 1)
        cached = set(owners)
        for request in running:
            pages = request.page_ids
            assert len(set(pages)) == len(pages), f"{request} has a page twice"
            capacity, computed = len(pages) * self.page_size, request.num_computed
            assert computed <= capacity, f"{request} has {capacity} slots for {computed} tokens"
            for index, page in enumerate(pages):
                assert (page in cached) == (index < request.num_shared), f"{request}, page {page}"
                owners[page] = owners.get(page, 0) + 1
        for page in range(self.allocator.num_pages):
            expected, actual = owners.get(page, 0), self.allocator.ref_count(page)
            assert actual == expected, f"page {page} has {actual} owners instead of {expected}"
            assert page in cached or actual <= 1, f"page {page} is shared outside the prefix cache"
