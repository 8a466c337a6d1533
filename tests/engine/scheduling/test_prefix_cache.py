"""Prefix cache: matching, sharing, LRU eviction."""

import pytest

from tiny_llm.engine.scheduling.page_allocator import PageAllocator
from tiny_llm.engine.scheduling.prefix_cache import PrefixCache

SIZE = 4


class Tree:
    """Prefix cache with an allocator, for requests of full pages."""

    def __init__(self, num_pages: int = 16):
        self.allocator = PageAllocator(num_pages)
        self.cache = PrefixCache(self.allocator, SIZE)

    def compute(self, text: str):
        """Adds a request with the pages of `text`; returns its last node."""
        node = self.cache.root
        for start in range(0, len(text) - SIZE + 1, SIZE):
            [page] = self.allocator.allocate()
            node = self.cache.insert(node, tuple(text[start : start + SIZE]), page)
        return node

    def num_cached(self, text: str) -> int:
        return SIZE * len(self.cache.match(list(text)))

    def check(self) -> None:
        self.cache.check_integrity()
        self.allocator.check_integrity()


@pytest.mark.parametrize(
    ("prompt", "num_cached"),
    [
        ("abcdefgh", 4),  # fully cached, but at least one token must be computed
        ("abcdefghi", 8),
        ("abcdefgX....", 4),  # diverges within a page, which is not shared
        ("abcd", 0),
        ("abc", 0),
        ("Xbcdefgh", 0),
        ("efghefgh", 0),  # `efgh` is cached only after `abcd`
        ("abcdefghijklm", 12),
        ("abcdefghijkl", 8),
    ],
)
def test_match_returns_full_pages(prompt, num_cached):
    tree = Tree()
    tree.compute("abcdefghijkl")
    assert tree.num_cached(prompt) == num_cached


def test_tree_branches():
    tree = Tree()
    tree.compute("abcdefgh")
    tree.compute("abcdXfgh")
    assert tree.cache.num_pages == 3
    assert tree.allocator.num_used == 3, "a page computed twice must be cached once"
    assert tree.num_cached("abcdXfgh.") == tree.num_cached("abcdefgh.") == 8
    tree.check()


def test_duplicate_page_is_freed_and_shared():
    tree = Tree()
    first, second = tree.compute("abcd"), tree.compute("abcd")
    assert first is second
    assert tree.allocator.ref_count(first.page) == 3
    tree.cache.release(first)
    assert tree.cache.num_evictable == 0
    tree.cache.release(second)
    assert tree.cache.num_evictable == 1
    tree.check()


def test_lru_eviction_children_before_parents():
    tree = Tree()
    old, new = tree.compute("aaaabbbb"), tree.compute("ccccdddd")
    tree.cache.release(old)
    tree.cache.release(new)
    again = tree.cache.match(list("aaaabbbb."))  # makes these pages the most recently used
    tree.cache.acquire(again)
    tree.cache.release(again[-1])
    for evicted in ("ccccdddd.", "cccc.", "aaaabbbb.", "aaaa."):
        assert tree.num_cached(evicted) == len(evicted) - 1
        assert tree.cache.evict(1) == 1
        assert tree.num_cached(evicted) == max(0, len(evicted) - 1 - SIZE)
        tree.check()
    assert tree.allocator.num_free == 16
    assert tree.cache.evict(1) == 0


def test_referenced_pages_are_not_evicted():
    tree = Tree()
    in_use, other = tree.compute("aaaabbbb"), tree.compute("aaaacccc")
    tree.cache.release(other)
    assert tree.cache.evict(9) == 1
    assert tree.num_cached("aaaabbbb.") == 8
    tree.cache.release(in_use)
    assert tree.cache.evict(9) == 2
    tree.check()


def test_conversation_turns_reuse_the_common_prefix():
    """Templates drop earlier reasoning, so the next prompt diverges there."""
    tree = Tree()
    tree.cache.release(tree.compute("<user>Hi!<bot><think>hm</think>Hello."))
    shared = len("<user>Hi!<bot>")
    assert tree.num_cached("<user>Hi!<bot>Hello.<user>Bye!<bot>") == shared // SIZE * SIZE


def test_adapters_have_separate_trees():
    tree = Tree()
    tree.compute("abcdefgh")
    cache, adapted = tree.cache, tree.cache.root_of(1)
    assert adapted is cache.root_of(1)
    assert cache.root_of(-1) is cache.root
    assert cache.match(list("abcdefghi"), adapted) == []
    [page] = tree.allocator.allocate()
    node = cache.insert(adapted, tuple("abcd"), page)
    assert cache.match(list("abcdefghi"), adapted) == [node]
    assert len(cache.match(list("abcdefghi"))) == 2
    assert cache.num_pages == 3
    assert {node.page for node in cache.nodes()} == set(range(3))
    cache.release(node)
    tree.check()
    assert cache.evict(1) == 1
    assert cache.match(list("abcdefghi"), adapted) == []
    assert len(cache.match(list("abcdefghi"))) == 2
    tree.check()
