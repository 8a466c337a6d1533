"""Page pool for paged KV caches: page memory and the free list.

A page is owned by the cache that allocated it until that cache frees it. The pool does not track
owners, but rejects a double free. It does not depend on requests, layers or positions. The engine's
allocator, whose pages have several owners, is in `engine/scheduling/page_allocator.py`.
"""

import mlx.core as mx

from .. import kernels
from ..errors import OutOfPagesError

# An unbounded pool grows by half of its size and by at least this many pages, so that each page is
# copied O(1) times on average.
GROWTH_PAGES = 16


class TinyKvPagedPool:
    """Pages for all layers and requests of a model.

    Pages are written in place. MLX arrays are immutable, so a write replaces `key_pages` with a new
    array, which reuses the old one's memory if nothing else references the old array. Therefore,
    keep references to the pool, not to `pool.key_pages`.

    Args:
        page_size: tokens per page.
        capacity: number of pages, all allocated on the first write; None for an unbounded pool.

    Attributes:
        key_pages, value_pages: P×H×page_size×D for P pages with H heads of size D; None before the
            first write. In an unbounded pool, P may exceed `num_pages`.

    Raises:
        ValueError: `page_size` or `capacity` is below 1.
    """

    def __init__(self, page_size: int = 128, capacity: int | None = None):
        if page_size < 1:
            raise ValueError(f"TinyKvPagedPool: page_size must be at least 1, got {page_size}.")
        if capacity is not None and capacity < 1:
            raise ValueError(f"TinyKvPagedPool: capacity must be at least 1, got {capacity}.")
        self.page_size = page_size
        self.capacity = capacity
        self.key_pages: mx.array | None = None
        self.value_pages: mx.array | None = None
        self._is_used = [False] * (capacity or 0)
        self._free = list(reversed(range(capacity or 0)))  # a stack: page 0 is on top

    @property
    def num_pages(self) -> int:
        """Number of pages, free and in use."""
        return len(self._is_used)

    @property
    def num_free_pages(self) -> int:
        """Number of existing pages that are not in use."""
        return len(self._free)

    @property
    def state(self) -> list[mx.array]:
        """Arrays to evaluate to materialize all writes."""
        return [x for x in (self.key_pages, self.value_pages) if x is not None]

    def allocate_page(self) -> int:
        """Allocates a page with undefined contents and returns its id: the one freed last.

        Raises:
            OutOfPagesError: all pages are in use; the message says how many: "all 3 pages …".
        """
        # [task 3.1.1 allocate]
        if not self._free:
            if self.capacity is not None:
                raise OutOfPagesError(
                    f"all {self.capacity} pages of the pool are in use; free some, or increase its "
                    "capacity."
                )
            self._free.append(len(self._is_used))
            self._is_used.append(False)
        page_id = self._free.pop()
        self._is_used[page_id] = True
        return page_id
        # [/task 3.1.1 allocate]

    def free_page(self, page_id: int) -> None:
        """Frees a page.

        Raises:
            ValueError: the page does not exist or is already free.
        """
        self._check_used(page_id, "free")
        # [task 3.1.1 free]
        self._is_used[page_id] = False
        self._free.append(page_id)
        # [/task 3.1.1 free]

    def read_page(self, page_id: int) -> tuple[mx.array, mx.array]:
        """Returns a page's keys and values, both 1×H×page_size×D.

        Release the arrays before the next write; otherwise the write copies the pool.

        Raises:
            ValueError: the page does not exist or is free, or the pool was never written.
        """
        self._check_used(page_id, "read")
        if self.key_pages is None or self.value_pages is None:
            raise ValueError("TinyKvPagedPool: cannot read a page before the first write.")
        self.ensure_capacity()
        return self.key_pages[page_id : page_id + 1], self.value_pages[page_id : page_id + 1]

    def write_page_slice(self, page_id: int, start: int, key: mx.array, value: mx.array) -> None:
        """Writes L tokens to a page, starting at position `start` of the page.

        Args:
            start: from 0 to page_size − L.
            key, value: 1×H×L×D.

        Raises:
            ValueError: the page is not in use, or the tokens do not fit or do not match the pool
                (see `check_tokens`).
        """
        self._check_used(page_id, "write to")
        self.check_tokens(key, value)
        B, _, L, _ = key.shape
        if B != 1 or start < 0 or start + L > self.page_size:
            raise ValueError(
                f"TinyKvPagedPool: key and value of shape {key.shape} do not fit into one page of "
                f"{self.page_size} tokens at position {start}."
            )
        first = page_id * self.page_size + start
        self.write(mx.arange(first, first + L, dtype=mx.int32)[None], key, value)

    def write(self, slots: mx.array, key: mx.array, value: mx.array) -> None:
        """Writes tokens to arbitrary slots.

        Args:
            slots: B×L int32, page_id · page_size + position in the page; −1 skips a token.
            key, value: B×H×L×D with the pool's heads and dtype (see `check_tokens`).
        """
        # [task 3.1.1 write]
        # MLX donates an array's memory only if no pending operation reads it. The previous layer's
        # attention may be pending; evaluating the new tokens, which depend on it, completes it.
        # On a GPU, dispatching is enough, because commands execute in order; MLX counts those in
        # flight as readers, so the write must overwrite.
        on_gpu = not kernels.computes_on_cpu()
        evaluate = mx.async_eval if on_gpu else mx.eval
        evaluate(key, value)
        self.ensure_capacity(key)
        assert self.key_pages is not None
        assert self.value_pages is not None
        self.key_pages = kernels.paged_cache_write(self.key_pages, key, slots, on_gpu)
        self.value_pages = kernels.paged_cache_write(self.value_pages, value, slots, on_gpu)
        # [/task 3.1.1 write]

    def check_tokens(self, key: mx.array, value: mx.array) -> None:
        """Rejects keys and values that do not match the pages.

        Raises:
            ValueError: key and value differ in shape or dtype, are not B×H×L×D, or their H, D or
                dtype differs from the pages'.
        """
        if key.ndim != 4 or key.shape != value.shape or key.dtype != value.dtype:
            raise ValueError(
                "paged KV cache: key and value must have the same shape B×H×L×D and dtype, got "
                f"{key.shape} {key.dtype} and {value.shape} {value.dtype}."
            )
        if self.key_pages is None:
            return
        _, H, _, D = self.key_pages.shape
        if (key.shape[1], key.shape[3], key.dtype) != (H, D, self.key_pages.dtype):
            raise ValueError(
                f"paged KV cache: new keys and values must match the pages ({H} heads of size {D}, "
                f"{self.key_pages.dtype}), got {key.shape} {key.dtype}."
            )

    def ensure_capacity(self, key: mx.array | None = None) -> None:
        """Allocates memory for all pages; the first call takes the shape from `key`."""
        # [task 3.1.1 room]
        if self.key_pages is None or self.value_pages is None:
            assert key is not None
            _, H, _, D = key.shape
            self.key_pages = mx.zeros((0, H, self.page_size, D), key.dtype)
            self.value_pages = mx.zeros((0, H, self.page_size, D), key.dtype)
        existing = len(self.key_pages)
        if existing >= self.num_pages:
            return
        growth = max(self.num_pages - existing, existing // 2, GROWTH_PAGES)
        if self.capacity is not None:
            growth = self.capacity - existing  # a bounded pool is allocated at once
        new_pages = mx.zeros((growth, *self.key_pages.shape[1:]), self.key_pages.dtype)
        self.key_pages = mx.concatenate([self.key_pages, new_pages])
        self.value_pages = mx.concatenate([self.value_pages, new_pages])
        mx.eval(self.key_pages, self.value_pages)
        # [/task 3.1.1 room]

    def _check_used(self, page_id: int, action: str) -> None:
        if not 0 <= page_id < self.num_pages:
            raise ValueError(
                f"TinyKvPagedPool: cannot {action} page {page_id}; the pool has {self.num_pages} "
                "pages."
            )
        if not self._is_used[page_id]:
            raise ValueError(f"TinyKvPagedPool: cannot {action} page {page_id}; it is free.")
