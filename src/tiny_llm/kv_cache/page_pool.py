"""The pool of pages that paged caches draw from: the memory, and which pages are free.

A page belongs to the cache that allocated it until that cache frees it. The pool does not record
the owner, but refuses to free a page twice. It knows nothing of requests, layers or positions.
"""

import mlx.core as mx

from .. import kernels
from ..errors import OutOfPagesError

# A pool without a capacity grows by half of what it has, and by at least this many pages: each
# page is then copied a bounded number of times, however many there will be.
GROWTH_PAGES = 16


class TinyKvPagedPool:
    """The pages of all layers and all requests of a model, and which of them are free.

    Pages are written in place. MLX's arrays are values: `key_pages` after a write is a new array
    that takes over the memory of the old one. That works only while nothing else refers to the old
    array, so keep `pool`, not `pool.key_pages`.

    Args:
        page_size: tokens that a page holds.
        capacity: how many pages there are. The first write takes the memory for all of them. None
            sets no bound: pages are then made on demand, and memory grows in steps.

    Attributes:
        key_pages, value_pages: P×H×page_size×D, None before the first write. Without a capacity, P
            may be more than `num_pages`.

    Raises:
        ValueError: a page size or a capacity below 1.
    """

    def __init__(self, page_size: int = 128, capacity: int | None = None):
        if page_size < 1:
            raise ValueError(f"TinyKvPagedPool: page_size is {page_size}; it must be at least 1.")
        if capacity is not None and capacity < 1:
            raise ValueError(f"TinyKvPagedPool: capacity is {capacity}; it must be at least 1.")
        self.page_size = page_size
        self.capacity = capacity
        self.key_pages: mx.array | None = None
        self.value_pages: mx.array | None = None
        self._is_used = [False] * (capacity or 0)
        self._free = list(reversed(range(capacity or 0)))  # the last is given next

    @property
    def num_pages(self) -> int:
        """How many pages there are, free or not."""
        return len(self._is_used)

    @property
    def num_free_pages(self) -> int:
        """How many of them are free."""
        return len(self._free)

    @property
    def state(self) -> list[mx.array]:
        """The arrays that all tokens are in: evaluating them computes all that was written."""
        return [x for x in (self.key_pages, self.value_pages) if x is not None]

    def allocate_page(self) -> int:
        """The id of a page that belongs to the caller from now on. What it holds means nothing.

        Raises:
            OutOfPagesError: all pages of the capacity are in use; the message says how many.
        """
        # [task 3.1.1 allocate]
        if not self._free:
            if self.capacity is not None:
                raise OutOfPagesError(
                    f"all {self.capacity} pages of the pool are in use; free some, or give it a "
                    "larger capacity."
                )
            self._free.append(len(self._is_used))
            self._is_used.append(False)
        page_id = self._free.pop()
        self._is_used[page_id] = True
        return page_id
        # [/task 3.1.1 allocate]

    def free_page(self, page_id: int) -> None:
        """Takes a page back; it may be given to another.

        Raises:
            ValueError: there is no such page, or it is free already.
        """
        self._check_used(page_id, "free")
        # [task 3.1.1 free]
        self._is_used[page_id] = False
        self._free.append(page_id)
        # [/task 3.1.1 free]

    def read_page(self, page_id: int) -> tuple[mx.array, mx.array]:
        """A page's keys and values, both 1×H×page_size×D.

        Drop them before the next write, or it copies the pool.

        Raises:
            ValueError: there is no such page, it is free, or nothing was ever written.
        """
        self._check_used(page_id, "read")
        if self.key_pages is None or self.value_pages is None:
            raise ValueError(
                "TinyKvPagedPool: nothing was written yet, so there is nothing to read."
            )
        self.ensure_capacity()
        return self.key_pages[page_id : page_id + 1], self.value_pages[page_id : page_id + 1]

    def write_page_slice(self, page_id: int, start: int, key: mx.array, value: mx.array) -> None:
        """Writes L tokens into a page, from its place `start` on.

        Args:
            page_id: a page that is in use.
            start: from 0 to page_size − L.
            key: 1×H×L×D.
            value: 1×H×L×D.

        Raises:
            ValueError: not as above, or other heads or another dtype than the pool's.
        """
        self._check_used(page_id, "write to")
        self.check_tokens(key, value)
        B, _, L, _ = key.shape
        if B != 1 or start < 0 or start + L > self.page_size:
            raise ValueError(
                f"TinyKvPagedPool: key and value of shape {key.shape} do not fit into one page of "
                f"{self.page_size} tokens from {start} on."
            )
        first = page_id * self.page_size + start
        self.write(mx.arange(first, first + L, dtype=mx.int32)[None], key, value)

    def write(self, slots: mx.array, key: mx.array, value: mx.array) -> None:
        """Writes tokens to any places of any pages.

        Args:
            slots: B×L int32, page_id · page_size + place in the page, or −1 to leave a token out.
            key: B×H×L×D, of the pool's heads and dtype (`check_tokens`).
            value: B×H×L×D.
        """
        # [task 3.1.1 write]
        # MLX hands an array's memory on only if nothing else will read the array. The attention of
        # the layer before may still be waiting to, in the same graph. The new tokens depend on that
        # attention, so evaluating them finishes it. Without this, every layer would copy the pool.
        # For a GPU it is enough that they were sent off: it runs commands in their order.
        evaluate = mx.eval if kernels.computes_on_cpu() else mx.async_eval
        evaluate(key, value)
        self.ensure_capacity(key)
        assert self.key_pages is not None
        assert self.value_pages is not None
        self.key_pages = kernels.paged_cache_write(self.key_pages, key, slots, overwrite=True)
        self.value_pages = kernels.paged_cache_write(self.value_pages, value, slots, overwrite=True)
        # [/task 3.1.1 write]

    def check_tokens(self, key: mx.array, value: mx.array) -> None:
        """Refuses keys and values that the pages cannot hold.

        Raises:
            ValueError: not the same shape B×H×L×D and dtype, or other H, D or dtype than before.
        """
        if key.ndim != 4 or key.shape != value.shape or key.dtype != value.dtype:
            raise ValueError(
                f"paged KV cache: key is {key.shape} {key.dtype} and value {value.shape} "
                f"{value.dtype}; they must be the same, B×H×L×D."
            )
        if self.key_pages is None:
            return
        _, H, _, D = self.key_pages.shape
        if (key.shape[1], key.shape[3], key.dtype) != (H, D, self.key_pages.dtype):
            raise ValueError(
                f"paged KV cache: new keys or values are {key.shape} {key.dtype}; the pages hold "
                f"{H} heads of size {D} in {self.key_pages.dtype}."
            )

    def ensure_capacity(self, key: mx.array | None = None) -> None:
        """Gives every page memory; `key` B×H×L×D says which kind, the first time."""
        # [task 3.1.1 room]
        pages = self.key_pages
        existing = 0 if pages is None else pages.shape[0]
        if existing >= self.num_pages:
            return
        growth = max(self.num_pages - existing, existing // 2, GROWTH_PAGES)
        if self.capacity is not None:
            growth = self.capacity - existing  # all at once
        like = pages if pages is not None else key
        assert like is not None
        _, H, _, D = like.shape
        room = (growth, H, self.page_size, D)
        self.key_pages = grow_pages(self.key_pages, room, like.dtype)
        mx.eval(self.key_pages)  # the smaller copy of one is let go before the other is made
        self.value_pages = grow_pages(self.value_pages, room, like.dtype)
        mx.eval(self.value_pages)
        # [/task 3.1.1 room]

    def _check_used(self, page_id: int, action: str) -> None:
        if not 0 <= page_id < self.num_pages:
            raise ValueError(
                f"TinyKvPagedPool: cannot {action} page {page_id}; there are {self.num_pages}."
            )
        if not self._is_used[page_id]:
            raise ValueError(f"TinyKvPagedPool: cannot {action} page {page_id}; it is free.")


def grow_pages(pages: mx.array | None, room: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """The pages, and new ones of zeros after them."""
    zeros = mx.zeros(room, dtype=dtype)
    return mx.concatenate([pages, zeros]) if pages is not None and pages.size else zeros
