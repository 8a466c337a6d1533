"""Paged KV cache of one request, and its metadata for paged attention.

A contiguous cache is one block of memory, which is copied when it grows. A paged cache takes
fixed-size pages from a shared pool (`page_pool.py`), so a request wastes less than one page and a
freed page fits any other request. A request stores its page ids in token order.

    pool     page 0  [a a a a]     page 1  [b b . .]     page 2  [a a a .]     page 3  free
    request a    page_ids [0, 2]   7 tokens
    request b    page_ids [1]      2 tokens
"""

import mlx.core as mx

from ..attention import Mask, gather_pages
from ..attention.paged import PagedKvMetadata, check_paged_mask
from ..errors import OutOfPagesError
from .full import TinyKvCache
from .page_pool import TinyKvPagedPool


class TinyKvPagedCache(TinyKvCache):
    """Keys and values of one request in one layer, stored in a pool's pages.

    Attributes:
        pool: page pool, shared with other caches.
        page_ids: the cache's pages in token order; all but the last are full.
        offset: number of cached tokens, also the next token's position.
    """

    def __init__(self, pool: TinyKvPagedPool):
        self.pool = pool
        self.page_ids: list[int] = []
        self.offset = 0

    @property
    def num_pages(self) -> int:
        """Number of allocated pages."""
        return len(self.page_ids)

    @property
    def page_lens(self) -> list[int]:
        """Number of tokens in each page: `page_size` in all but the last."""
        size = self.pool.page_size
        return [min(size, self.offset - size * page) for page in range(self.num_pages)]

    def update_and_fetch_paged(
        self, key: mx.array, value: mx.array, mask_length: int | None = None, mask: Mask = None
    ) -> PagedKvMetadata:
        """Appends keys and values and returns attention metadata; copies no pages.

        Args:
            key, value: 1×H×L×D, the new tokens.
            mask_length: for caches that build a mask (see `TinyKvCache`); this one does not.
            mask: None or "causal", returned in the metadata.

        Raises:
            ValueError: an array mask, or key and value do not match the pages.
            OutOfPagesError: too few free pages; nothing was appended.
        """
        check_paged_mask(mask)
        self._write(key, value)
        return paged_metadata(self.pool, [self], mask)

    def update_and_fetch(
        self, key: mx.array, value: mx.array, mask_length: int | None = None, mask: Mask = None
    ) -> tuple[mx.array, mx.array, int | None, Mask]:
        """See `TinyKvCache`: returns a dense copy, for comparison, and `mask`."""
        keys, values, (S, *_) = self.append(key, value)
        return keys, values, S, mask

    def append(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array, list[int]]:
        """See `TinyKvCache`: returns a dense copy, because pages are not contiguous."""
        self._write(key, value)
        gathered = self.gather_dense()
        assert gathered is not None
        return *gathered, [self.offset]

    def gather_dense(self) -> tuple[mx.array, mx.array] | None:
        """Copies keys and values into one array each, 1×H×offset×D; None if empty."""
        # [task 3.1.3 gather]
        pool = self.pool
        if pool.key_pages is None or pool.value_pages is None or self.offset == 0:
            return None
        page_ids = mx.array(self.page_ids, dtype=mx.int32)
        return (
            gather_pages(pool.key_pages, page_ids, self.offset)[None],
            gather_pages(pool.value_pages, page_ids, self.offset)[None],
        )
        # [/task 3.1.3 gather]

    @property
    def state(self) -> list[mx.array]:
        """See `TinyKvCache`: the pool's arrays, shared with other caches."""
        return self.pool.state

    def rewind(self, n: int) -> None:
        """See `TinyKvCache`: frees pages that become empty."""
        if not 0 <= n <= self.offset:
            raise ValueError(
                f"TinyKvPagedCache: cannot rewind by {n} tokens; it has {self.offset}."
            )
        # [task 3.1.2 rewind]
        self.offset -= n
        while self.num_pages > self._pages_for(self.offset):
            self.pool.free_page(self.page_ids.pop())
        # [/task 3.1.2 rewind]

    def release(self) -> None:
        """See `TinyKvCache`: frees all pages. Idempotent."""
        self.rewind(self.offset)

    def reserve(self, L: int) -> list[int]:
        """Extends the cache by L tokens, which the caller must write next.

        Returns:
            The tokens' slots, for `TinyKvPagedPool.write`.

        Raises:
            ValueError: L is below 1.
            OutOfPagesError: too few free pages; nothing was changed.
        """
        if L < 1:
            raise ValueError(f"TinyKvPagedCache: must reserve at least 1 token, got {L}.")
        # [task 3.1.2 reserve]
        new_pages: list[int] = []
        try:
            while self.num_pages + len(new_pages) < self._pages_for(self.offset + L):
                new_pages.append(self.pool.allocate_page())
        except OutOfPagesError:
            for page in reversed(new_pages):  # restores the order of the free list
                self.pool.free_page(page)
            raise
        self.page_ids += new_pages
        size = self.pool.page_size
        positions = range(self.offset, self.offset + L)
        self.offset += L
        return [self.page_ids[position // size] * size + position % size for position in positions]
        # [/task 3.1.2 reserve]

    def _write(self, key: mx.array, value: mx.array) -> None:
        self.pool.check_tokens(key, value)
        B, _, L, _ = key.shape
        if B != 1:
            raise ValueError(f"TinyKvPagedCache: key and value must have 1 sequence, got {B}.")
        # [task 3.1.2 write]
        self.pool.write(mx.array([self.reserve(L)], dtype=mx.int32), key, value)
        # [/task 3.1.2 write]

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.pool.page_size)


def paged_metadata(
    pool: TinyKvPagedPool, caches: list[TinyKvPagedCache | None], mask: Mask
) -> PagedKvMetadata:
    """Builds a batch's metadata from caches in one pool; None is an idle row."""
    assert pool.key_pages is not None
    assert pool.value_pages is not None
    # [task 3.2.1 metadata]
    width = max([1, *(cache.num_pages for cache in caches if cache is not None)])
    rows = [[] if cache is None else cache.page_ids for cache in caches]
    return PagedKvMetadata(
        pool.key_pages,
        pool.value_pages,
        mx.array([row + [-1] * (width - len(row)) for row in rows], dtype=mx.int32),
        mx.array([0 if cache is None else cache.offset for cache in caches], dtype=mx.int32),
        pool.page_size,
        mask,
    )
    # [/task 3.2.1 metadata]
