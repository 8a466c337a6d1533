"""`PageAllocator`: reference counts, double frees; the tests of day 3.3 cover allocation."""

import sys

import pytest

from tiny_llm.engine.scheduling.page_allocator import PageAllocator


def test_double_free_and_sharing_a_free_page_raise():
    allocator = PageAllocator(2)
    [page] = allocator.allocate()
    allocator.free(page)
    with pytest.raises(ValueError, match=f"cannot free page {page}: it is already free"):
        allocator.free(page)
    with pytest.raises(ValueError, match=f"cannot share page {page}: it is free"):
        allocator.share(page)
    allocator.check_integrity()


@pytest.mark.skipif(sys.flags.optimize > 0, reason="python -O removes the package's asserts")
def test_check_integrity_detects_corruption():
    allocator = PageAllocator(2)
    allocator.allocate()
    allocator._ref_counts[0] = 0
    with pytest.raises(AssertionError, match="page 0 has 0 owners"):
        allocator.check_integrity()
