"""`PageAllocator`: all-or-nothing allocation, reference counts, double frees."""

import sys

import pytest

from tiny_llm import OutOfPagesError
from tiny_llm.engine.scheduling.page_allocator import PageAllocator


def test_pages_are_distinct_and_reused():
    allocator = PageAllocator(5)
    first, second = allocator.allocate(2), allocator.allocate(3)
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert (allocator.num_free, allocator.num_used) == (0, 5)
    for page in first:
        allocator.free(page)
    allocator.check_integrity()
    assert sorted(allocator.allocate(2)) == sorted(first)


def test_exhaustion_raises_and_allocates_nothing():
    allocator = PageAllocator(3)
    allocator.allocate()
    with pytest.raises(OutOfPagesError, match=r"requested 3 pages, but only 2 are free\."):
        allocator.allocate(3)
    assert allocator.num_free == 2
    allocator.check_integrity()


def test_shared_page_is_freed_by_its_last_owner():
    allocator = PageAllocator(1)
    [page] = allocator.allocate()
    allocator.share(page)
    allocator.free(page)
    assert (allocator.num_free, allocator.ref_count(page)) == (0, 1)
    allocator.free(page)
    assert allocator.num_free == 1


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
