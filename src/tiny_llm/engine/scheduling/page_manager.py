"""PageManager: page ownership, allocation and prefix sharing per request.

Invariant: a request's full pages are in the prefix cache; its last, partial page is not shared.

With recurrent state, pages and state slots share the KV memory: a used slot takes the memory of
`SchedulerConfig.state_slot_pages` pages. Whichever is needed evicts both kinds: first superseded
checkpoints, then the least recently used pages with their checkpoints.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...errors import OutOfPagesError
from .config import MIN_STATE_SLOTS, SchedulerConfig
from .page_allocator import PageAllocator
from .prefix_cache import PageTokens, PrefixCache, PrefixNode
from .request import EngineRequest
from .state_slots import StateSlots

PageKey = tuple[PrefixNode, PageTokens]  # identifies a page: parent node and tokens


@dataclass(frozen=True)
class PageCounts:
    """Page counts by state; free + cached + used = all pages."""

    free: int  # neither in the prefix cache nor referenced by a request
    cached: int  # in the prefix cache, not referenced by a request
    used: int  # referenced by requests
    shared: int  # referenced by more than one request; included in `used`


class PageManager:
    """Allocates, shares and releases the pages of all requests.

    Attributes:
        states: recurrent state slots of requests and prefix cache nodes; None without slots.
        on_share: callback for each page newly inserted into the prefix cache.
    """

    def __init__(self, config: SchedulerConfig):
        self.page_size = size = config.page_size
        self.allocator = PageAllocator(config.num_pages)
        self.cache = self._new_cache(config)
        self._sharing = config.enable_prefix_caching
        self.states: StateSlots | None = None
        if config.num_state_slots:
            self.states = StateSlots(config.num_state_slots, size, self._sharing)
            self.cache.on_evict = self.states.checkpoints.discard
            if config.state_slot_pages:
                self.states.checkpoints.memory = self
        self.slot_pages = config.state_slot_pages
        self.on_share: Callable[[PrefixNode], None] = lambda node: None

    def _new_cache(self, config: SchedulerConfig) -> PrefixCache:
        return PrefixCache(self.allocator, config.page_size)

    @property
    def num_free(self) -> int:
        """Number of free pages, without the memory that state slots take."""
        return self.allocator.num_free - self._num_state_pages(num_evicted=0)

    @property
    def num_evictable(self) -> int:
        return self.cache.num_evictable

    @property
    def num_available(self) -> int:
        num_evicted = 0 if self.states is None else len(self.states.checkpoints.evictable)
        num_pages = self.allocator.num_free + self.num_evictable
        return num_pages - self._num_state_pages(num_evicted)

    def _num_state_pages(self, num_evicted: int) -> int:
        """Pages' worth of memory that state slots take once `num_evicted` are evicted."""
        if self.states is None:
            return 0
        return math.ceil(self.slot_pages * (self.states.num_used - num_evicted))

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def tokens_of_page(self, request: EngineRequest, index: int) -> PageTokens:
        """Returns the tokens of a request's page `index`; the last may be partial."""
        return tuple(request.token_ids[index * self.page_size : (index + 1) * self.page_size])

    def match(self, request: EngineRequest) -> list[PrefixNode]:
        """Returns the request's prefix cache hit: the path of nodes from the root.

        Empty while prompt tokens remain to be scored, because their logits must be computed.
        """
        is_scored = request.num_scored == request.num_to_score
        return self._match(request.token_ids, request.adapter) if is_scored else []

    def num_cached(self, token_ids: Sequence[int], adapter: int) -> int:
        """Returns how many leading full pages of `token_ids` a request would hit."""
        return len(self._match([*token_ids, 0], adapter))

    def _match(self, token_ids: Sequence[int], adapter: int) -> list[PrefixNode]:
        if not self._sharing:
            return []
        path = self.cache.match(token_ids, self.cache.root_of(adapter))
        return path if self.states is None else self.states.up_to_checkpoint(path)

    def next_key(self, request: EngineRequest, path: Sequence[PrefixNode]) -> PageKey | None:
        """Returns the key of the page after `path`; None if it is not shareable."""
        if not self._sharing or (len(path) + 1) * self.page_size >= request.num_tokens:
            return None
        parent = path[-1] if path else self.cache.root_of(request.adapter)
        return parent, self.tokens_of_page(request, len(path))

    def admit(self, request: EngineRequest, path: Sequence[PrefixNode], reserve: int) -> bool:
        """Assigns the shared pages of `path` and new pages for the remaining tokens.

        Args:
            path: prefix cache hit from `match`.
            reserve: pages that must stay available.

        Returns:
            False if too few pages are available; ownership is then unchanged.
        """
        if self.states is not None:
            self.states.checkpoints.protected = path[-1] if path else None
            # After a hit, the request already has one of its slots: the protected checkpoint.
            reserve += math.ceil((MIN_STATE_SLOTS - bool(path)) * self.slot_pages)
        # [task 3.3.2 admit]
        self.cache.acquire(path)  # before `_allocate`, which could evict these pages
        request.last_node = path[-1] if path else self.cache.root_of(request.adapter)
        needed = self.pages_for(request.num_tokens) - len(path)
        if needed + reserve > self.num_available:
            self.cache.release(request.last_node)
            return False
        request.page_ids.extend([node.page for node in path])
        request.page_ids.extend(self._allocate(needed))
        request.num_shared = len(path)
        request.num_computed = len(path) * self.page_size
        return True
        # [/task 3.3.2 admit]

    def grow(self, request: EngineRequest, num_tokens: int) -> None:
        """Allocates pages until the request has capacity for `num_tokens` tokens.

        Raises:
            OutOfPagesError: too few pages are available; ownership is unchanged.
        """
        needed = self.pages_for(num_tokens) - len(request.page_ids)
        if needed > 0:
            request.page_ids.extend(self._allocate(needed))

    def grow_if_possible(self, request: EngineRequest, num_tokens: int) -> int:
        """Like `grow`, limited to available pages; returns the capacity in tokens."""
        max_tokens = (len(request.page_ids) + self.num_available) * self.page_size
        self.grow(request, min(num_tokens, max_tokens))
        return len(request.page_ids) * self.page_size

    def _allocate(self, count: int) -> list[int]:
        if count > self.num_available:  # before evicting, because too few pages would not help
            raise OutOfPagesError(
                f"requested {count} pages, but only {self.num_available} are free or evictable."
            )
        self.evict_until_free(count)
        return self.allocator.allocate(count)

    def evict_until_free(self, count: int) -> None:
        """Evicts pages and checkpoints until `count` pages are free, or none is evictable."""
        if self.states is None or not self.slot_pages:
            self.cache.evict(count - self.num_free)
            return
        checkpoints = self.states.checkpoints
        while self.num_free < count and checkpoints.evict_superseded():
            pass
        while self.num_free < count and (self.cache.evict(1) or checkpoints.evict()):
            pass

    def share_full_pages(self, request: EngineRequest, num_written: int) -> None:
        """Inserts the full pages of the first `num_written` tokens into the prefix cache."""
        if not self._sharing:
            return
        while (request.num_shared + 1) * self.page_size <= num_written:
            index = request.num_shared
            tokens, page = self.tokens_of_page(request, index), request.page_ids[index]
            node = request.last_node = self.cache.insert(request.last_node, tokens, page)
            request.page_ids[index] = node.page
            request.num_shared += 1
            if node.page == page:  # otherwise the cache already had a page with these tokens
                self.on_share(node)

    def pages_of(self, request: EngineRequest) -> Sequence[int]:
        return request.page_ids

    def capacity(self, request: EngineRequest) -> int:
        """Returns the number of tokens for which a request has pages."""
        return len(request.page_ids) * self.page_size

    def free_before_window(self, request: EngineRequest, num_written: int) -> None:
        """Releases pages that no later token attends to: none without a sliding window."""

    def block(self, node: PrefixNode, group: int) -> Sequence[int]:
        """Returns a KV cache group's pages of a prefix cache node; −1 for evicted ones."""
        return [node.page]

    def request_block(self, request: EngineRequest, index: int, group: int) -> Sequence[int]:
        """Returns a KV cache group's pages of a request's block."""
        return [request.page_ids[index]]

    def num_before_window(self, num_blocks: int, group: int) -> int:
        """Returns how many leading blocks of a hit the next tokens do not need."""
        return 0

    def prepare_load(self, request: EngineRequest, num_blocks: int) -> bool:
        """Prepares pages for reading those of the first `num_blocks` blocks from disk.

        Only pages that later tokens need remain. Returns False if pages are missing.
        """
        return True

    def has_context(self, request: EngineRequest) -> bool:
        """Whether a request has all pages that its first uncomputed token needs."""
        return True

    def release(self, request: EngineRequest) -> None:
        """Releases a request's pages and state slots; shared pages stay cached."""
        if self.states is not None:
            self.states.release(request)
        self._release_pages(request)
        del request.page_ids[:]
        request.last_node = None
        request.num_shared = 0
        request.num_computed = 0
        request.num_loading = 0
        request.num_draft_uncomputed = 0

    def _release_pages(self, request: EngineRequest) -> None:
        for page in reversed(request.page_ids[request.num_shared :]):
            self.allocator.free(page)
        if self._sharing:
            self.cache.release(request.last_node)

    def evict_half(self) -> int:
        return self.cache.evict(-(-self.cache.num_evictable // 2))

    def free_rows(self) -> tuple[list[int], list[int]]:
        return self.allocator.free_pages, [] if self.states is None else self.states.free_slots

    def shared_pages(self, request: EngineRequest) -> Sequence[int]:
        """Returns a request's pages in the prefix cache."""
        return request.page_ids[: request.num_shared]

    def counts(self, running: Iterable[EngineRequest]) -> PageCounts:
        shared = {page for request in running for page in self.shared_pages(request)}
        return PageCounts(
            free=self.num_free,
            cached=self.cache.num_evictable,
            used=self.allocator.num_pages - self.num_free - self.cache.num_evictable,
            # The prefix cache is one owner of each page, so a third owner is a second request.
            shared=sum(self.allocator.ref_count(page) > 2 for page in shared),
        )

    def check_integrity(self, running: Sequence[EngineRequest]) -> None:
        self.allocator.check_integrity()
        self.cache.check_integrity()
        assert self.num_free >= 0, "pages and state slots exceed the memory"
        if self.states is not None:
            self.states.check_integrity(running)
        owners = dict.fromkeys(self.cache.page_ids(), 1)
        cached = set(owners)
        for request in running:
            pages, shared = self.pages_of(request), self.shared_pages(request)
            assert len(set(pages)) == len(pages), f"{request} has a page twice"
            capacity, computed = self.capacity(request), request.num_computed
            assert computed <= capacity, f"{request} has {capacity} slots for {computed} tokens"
            for index, page in enumerate(pages):
                assert (page in cached) == (index < len(shared)), (
                    f"{request}: its first {len(shared)} pages, and no others, must be in the cache"
                )
                owners[page] = owners.get(page, 0) + 1
        for page in range(self.allocator.num_pages):
            expected, actual = owners.get(page, 0), self.allocator.ref_count(page)
            assert actual == expected, f"page {page} has {actual} owners instead of {expected}"
            assert page in cached or actual <= 1, f"page {page} is shared outside the prefix cache"
