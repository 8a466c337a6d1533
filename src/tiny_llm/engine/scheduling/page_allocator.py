"""PageAllocator: free list and reference counts of KV cache page ids.

Written twice on purpose: `kv_cache/page_pool.py`, Week 3's first pool, has one owner per page.

A page is just a number here, counted from 0. The model owns its contents: the keys and values of
`page_size` tokens in every layer.
"""

from ...errors import OutOfPagesError


class PageAllocator:
    """Reference-counted allocator; allocates the most recently freed page first."""

    def __init__(self, num_pages: int):
        self.num_pages = num_pages
        self._ref_counts = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))  # a stack: page 0 is on top

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def free_pages(self) -> list[int]:
        return self._free

    @property
    def num_used(self) -> int:
        return self.num_pages - len(self._free)

    def ref_count(self, page: int) -> int:
        return self._ref_counts[page]

    def allocate(self, count: int = 1) -> list[int]:
        """Allocates `count` pages to one owner, all or nothing.

        Raises:
            OutOfPagesError: fewer than `count` pages are free.
        """
        # [task 3.3.2 allocate]
        if count > len(self._free):
            raise OutOfPagesError(f"requested {count} pages, but only {len(self._free)} are free.")
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._ref_counts[page] = 1
        return pages
        # [/task 3.3.2 allocate]

    def share(self, page: int) -> None:
        if self._ref_counts[page] == 0:
            raise ValueError(f"cannot share page {page}: it is free.")
        self._ref_counts[page] += 1

    def free(self, page: int) -> None:
        """Drops a reference; the page becomes free with its last one.

        Raises:
            ValueError: the page is already free.
        """
        if self._ref_counts[page] == 0:
            raise ValueError(f"cannot free page {page}: it is already free.")
        # [task 3.3.2 free-page]
        self._ref_counts[page] -= 1
        if self._ref_counts[page] == 0:
            self._free.append(page)
        # [/task 3.3.2 free-page]

    def check_integrity(self) -> None:
        free = set(self._free)
        assert len(free) == len(self._free), "a page is in the free list twice"
        for page, count in enumerate(self._ref_counts):
            assert count >= 0, f"page {page} has {count} owners"
            assert (count == 0) == (page in free), (
                f"page {page} has {count} owners, free pages: {free}"
            )
