"""Pages by reference count: who may write one, and when it is free again.

A page is a number. What it holds, keys and values of `page_size` tokens in all layers, is the
model's business; here it is either free or held by one or more owners. Knows nothing of requests,
tokens or MLX.
"""

from ..errors import OutOfPagesError


class PageAllocator:
    """Hands out `num_pages` pages, lowest numbers first, and takes each back once.

    Args:
        num_pages: how many there are, numbered from 0.
    """

    def __init__(self, num_pages: int):
        if num_pages < 1:
            raise ValueError(f"num_pages is {num_pages}; it must be at least 1.")
        self.num_pages = num_pages
        self._ref_counts = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))  # a stack: what was freed last comes first

    @property
    def num_free(self) -> int:
        """Pages without an owner."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Pages with at least one."""
        return self.num_pages - len(self._free)

    def ref_count(self, page: int) -> int:
        """How many owners a page has."""
        return self._ref_counts[page]

    def allocate(self, count: int = 1) -> list[int]:
        """Takes free pages, for one owner: all of them or none.

        Raises:
            OutOfPagesError: fewer are free.
        """
        # [task 3.3.2 allocate]
        if count > len(self._free):
            raise OutOfPagesError(f"{count} pages were asked for and {len(self._free)} are free.")
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._ref_counts[page] = 1
        return pages
        # [/task 3.3.2 allocate]

    def share(self, page: int) -> None:
        """Adds an owner to a page that has one.

        Raises:
            ValueError: it is free.
        """
        if self._ref_counts[page] == 0:
            raise ValueError(f"page {page} is free; a page without an owner cannot be shared.")
        self._ref_counts[page] += 1

    def free(self, page: int) -> None:
        """Takes an owner away; after the last one, the page is free.

        Raises:
            ValueError: it is free already.
        """
        if self._ref_counts[page] == 0:
            raise ValueError(f"page {page} is free already; a page is freed once by each owner.")
        # [task 3.3.2 free-page]
        self._ref_counts[page] -= 1
        if self._ref_counts[page] == 0:
            self._free.append(page)
        # [/task 3.3.2 free-page]

    def check_integrity(self) -> None:
        """Asserts that every page is free or owned, and not both."""
        free = set(self._free)
        assert len(free) == len(self._free), "a page is twice among the free ones"
        for page, count in enumerate(self._ref_counts):
            assert count >= 0, f"page {page} has {count} owners"
            assert (count == 0) == (page in free), f"page {page} has {count} owners; free: {free}"
