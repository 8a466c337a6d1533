"""Prefix cache: a tree per adapter. The tests of days 3.4 and 6.5 cover matching and eviction."""

from tiny_llm.engine.scheduling.page_allocator import PageAllocator
from tiny_llm.engine.scheduling.prefix_cache import PrefixCache


def test_adapters_have_separate_trees():
    allocator = PageAllocator(16)
    cache = PrefixCache(allocator, 4)
    pages = iter(allocator.allocate(3))
    first = cache.insert(cache.root, tuple("abcd"), next(pages))
    cache.insert(first, tuple("efgh"), next(pages))
    adapted = cache.root_of(1)
    assert adapted is cache.root_of(1)
    assert cache.root_of(-1) is cache.root
    assert cache.match(list("abcdefghi"), adapted) == []
    node = cache.insert(adapted, tuple("abcd"), next(pages))
    assert cache.match(list("abcdefghi"), adapted) == [node]
    assert len(cache.match(list("abcdefghi"))) == 2
    assert cache.num_pages == 3
    assert {node.page for node in cache.nodes()} == set(range(3))
    cache.release(node)
    cache.check_integrity()
    assert cache.evict(1) == 1
    assert cache.match(list("abcdefghi"), adapted) == []
    assert len(cache.match(list("abcdefghi"))) == 2
    cache.check_integrity()
    allocator.check_integrity()
