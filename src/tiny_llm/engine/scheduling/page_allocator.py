"""Pages by reference count: which are free, and how many owners the others have.

A page is a number here. The model knows what it holds: keys and values of `page_size` tokens in all
layers. This file knows nothing of requests, tokens or MLX.
"""

from ...errors import OutOfPagesError


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
        self._free = list(
            range(num_pages - 1, -1, -1)
        )  # a stack: the page freed last is used first

    @property
    def num_free(self) -> int:
        """How many pages have no owner."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """How many pages have an owner."""
        return self.num_pages - len(self._free)

    def ref_count(self, page: int) -> int:
        """How many owners a page has."""
        return self._ref_counts[page]

    def allocate(self, count: int = 1) -> list[int]:
        """Takes `count` free pages for one owner, or none.

        Raises:
            OutOfPagesError: fewer than `count` are free.
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
        """Removes an owner; without owners, the page is free.

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
