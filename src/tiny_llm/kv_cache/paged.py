"""The KV cache in pages: a request has as many as its tokens need, and they may be anywhere.

A dense cache needs room in one piece, for the longest that a request may become. Here memory is
cut into pages of some tokens each, and one pool hands them out: a request wastes less than a page,
and what it returns fits every other. A request knows its pages by their ids, in order.

    pool     page 0  [a a a a]     page 1  [b b . .]     page 2  [a a a .]     page 3  free
    request a    page_ids [0, 2]   7 tokens
    request b    page_ids [1]      2 tokens

The pool is in `page_pool.py`; here is what one request does with it, and what paged attention is
told of one or several.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..attention import Mask, gather_pages, is_none_or_causal
from ..errors import OutOfPagesError
from .full import TinyKvCache
from .page_pool import TinyKvPagedPool

__all__ = ["OutOfPagesError", "PagedKvMetadata", "TinyKvPagedCache", "TinyKvPagedPool"]


@dataclass(frozen=True, eq=False)
class PagedKvMetadata:
    """Where the keys and values of B sequences are: what `paged_attention` is told.

    Drop it before the next write to the pages, or that write copies them.

    Attributes:
        key_pages, value_pages: P×H×page_size×D.
        block_table: B×max_pages int32, each sequence's pages in order, then −1.
        context_lens: B int32, how many tokens each has; 0 where there is no sequence.
        page_size: tokens a page holds.
        mask: None or "causal".
        cu_seqlens_q: B+1 int32 if the queries are a ragged batch, for `paged_attention_varlen`.
    """

    key_pages: mx.array
    value_pages: mx.array
    block_table: mx.array
    context_lens: mx.array
    page_size: int
    mask: Mask = None
    cu_seqlens_q: mx.array | None = None


class TinyKvPagedCache(TinyKvCache):
    """The keys and values of one layer of one request, in pages of a pool.

    Args:
        pool: where its pages come from, shared with others.

    Attributes:
        pool: the same.
        page_ids: its pages, in the order of the tokens. All but the last are full.
        offset: how many tokens it holds; the next token's position.
    """

    def __init__(self, pool: TinyKvPagedPool):
        self.pool = pool
        self.page_ids: list[int] = []
        self.offset = 0

    @property
    def num_pages(self) -> int:
        """How many pages it has."""
        return len(self.page_ids)

    @property
    def page_lens(self) -> list[int]:
        """How many tokens each of its pages holds."""
        size = self.pool.page_size
        return [min(size, self.offset - page * size) for page in range(self.num_pages)]

    def update_and_fetch_paged(
        self,
        key: mx.array,
        value: mx.array,
        mask_length: int | None = None,
        mask: Mask = None,
    ) -> PagedKvMetadata:
        """Appends new keys and values and says where all are. Nothing is gathered.

        Args:
            key: 1×H×L×D, the new tokens'.
            value: 1×H×L×D.
            mask_length: not used; the causal rule needs no mask of some length.
            mask: None or "causal", passed through.

        Raises:
            ValueError: an array as mask, or key and value that the pages cannot hold.
            OutOfPagesError: the pool has too few; nothing was appended.
        """
        check_paged_mask(mask)
        self._write(key, value)
        return paged_metadata(self.pool, [self], mask)

    def update_and_fetch(
        self,
        key: mx.array,
        value: mx.array,
        mask_length: int | None = None,
        mask: Mask = None,
    ) -> tuple[mx.array, mx.array, int | None, Mask]:
        """See `TinyKvCache`: a dense copy of everything, for comparison.

        The mask is passed through; errors are those of `append`.
        """
        keys, values, (S, *_) = self.append(key, value)
        return keys, values, S, mask

    def append(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array, list[int]]:
        """See `TinyKvCache`, but a copy: keys and values in pages are in no buffer."""
        self._write(key, value)
        gathered = self.gather_dense()
        assert gathered is not None
        return *gathered, [self.offset]

    def gather_dense(self) -> tuple[mx.array, mx.array] | None:
        """The keys and values in one array each, 1×H×offset×D; None while nothing is held."""
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
        """See `TinyKvCache`: the pool's pages, which other caches' tokens are in too."""
        return self.pool.state

    def rewind(self, n: int) -> None:
        """See `TinyKvCache`: pages that hold nothing any more go back to the pool."""
        if not 0 <= n <= self.offset:
            raise ValueError(f"TinyKvPagedCache: cannot forget {n} of {self.offset} tokens.")
        # [task 3.1.2 rewind]
        self.offset -= n
        while self.num_pages > self._pages_for(self.offset):
            self.pool.free_page(self.page_ids.pop())
        # [/task 3.1.2 rewind]

    def release(self) -> None:
        """See `TinyKvCache`: every page goes back to the pool, once; again does nothing."""
        self.rewind(self.offset)

    def reserve(self, L: int) -> list[int]:
        """Makes room for L more tokens, which are the cache's from now on: to be written next.

        Returns:
            Their places in the pool, as `TinyKvPagedPool.write` takes them.

        Raises:
            ValueError: no token.
            OutOfPagesError: the pool has too few; nothing was changed.
        """
        if L < 1:
            raise ValueError(f"TinyKvPagedCache: room for {L} tokens; give at least one.")
        # [task 3.1.2 reserve]
        new_pages: list[int] = []
        try:
            while self.num_pages + len(new_pages) < self._pages_for(self.offset + L):
                new_pages.append(self.pool.allocate_page())
        except OutOfPagesError:
            for page in new_pages:
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
            raise ValueError(f"TinyKvPagedCache: it is for one sequence, {B} were given.")
        # [task 3.1.2 write]
        self.pool.write(mx.array([self.reserve(L)], dtype=mx.int32), key, value)
        # [/task 3.1.2 write]

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.pool.page_size)


def paged_metadata(
    pool: TinyKvPagedPool, caches: list[TinyKvPagedCache | None], mask: Mask
) -> PagedKvMetadata:
    """What `paged_attention` is told of some caches of a pool; None is a row without a sequence."""
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


def check_paged_mask(mask: Any) -> None:
    """Refuses a mask that paged attention does not have.

    Raises:
        ValueError: neither None nor "causal".
    """
    if not is_none_or_causal(mask):
        raise ValueError(
            "paged KV cache: paged attention has no array masks; give None or 'causal'."
        )
