"""Checkpoints: recurrent states of prefix cache nodes, greedy-dual eviction.

A checkpoint is a slot holding the state after a node's page; it is never written again. Its value
is the number of pages that would be recomputed without it: those since the previous checkpoint on
its path. Eviction is greedy-dual: the checkpoint with the lowest priority is evicted first. Its
priority is its value plus the eviction clock at its last use, so unused checkpoints age. Once a
request has continued from a checkpoint and placed later ones, the earlier ones lose their value,
unless several requests share them: a conversation needs only its last turn's checkpoint.

Source: Cao and Irani, "Cost-aware WWW proxy caching algorithms" (1997).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from .page_allocator import PageAllocator
from .prefix_cache import PrefixNode


class PagePool(Protocol):
    """`PageManager`, whose pages share the KV memory with the state slots."""

    slot_pages: float

    @property
    def num_free(self) -> int: ...
    @property
    def num_evictable(self) -> int: ...
    def evict_until_free(self, count: int) -> None: ...


@dataclass(eq=False)
class Checkpoint:
    """The state after a prefix cache node's page.

    Attributes:
        pages: pages since the previous checkpoint on the path from the root.
        is_rolling: whether the sequence's next checkpoint replaces it, unless it was hit or the
            tree branches between the two.
        priority: eviction priority; the lowest is evicted first.
        ancestor: the node of the previous checkpoint, or the root.
        num_hits: requests that have continued from it; starts at 2 where requests diverge, which
            prevents demotion.
    """

    slot: int
    pages: int
    is_rolling: bool
    priority: int
    ancestor: PrefixNode
    num_hits: int = 0


class Checkpoints:
    """Checkpoints by prefix cache node, and the allocator of their slots.

    The prefix cache holds one reference to each checkpoint's slot; each request using it holds
    another. Checkpoints not used by a request are evictable.

    Attributes:
        on_add: callback for the node of each new checkpoint that is not rolling.
        memory: the pages that share their memory with the slots, or None.
        protected: node of the prefix cache hit of the request being admitted; not evictable.
    """

    def __init__(self, allocator: PageAllocator):
        self.by_node: dict[PrefixNode, Checkpoint] = {}
        self._allocator = allocator
        self._clock = 0
        self.on_add: Callable[[PrefixNode], None] = lambda node: None
        self.memory: PagePool | None = None
        self.protected: PrefixNode | None = None

    @property
    def evictable(self) -> list[PrefixNode]:
        """Nodes whose checkpoint is not used by a request."""
        return [
            node
            for node, checkpoint in self.by_node.items()
            if self._allocator.ref_count(checkpoint.slot) == 1 and node is not self.protected
        ]

    @property
    def num_free(self) -> int:
        num_free = self._allocator.num_free
        return num_free if self.memory is None else self._limit(num_free, self.memory.num_free)

    @property
    def num_available(self) -> int:
        if self.memory is None:
            return self._allocator.num_free + len(self.evictable)
        num_pages = self.memory.num_free + self.memory.num_evictable
        return self._limit(self._allocator.num_free, num_pages) + len(self.evictable)

    def _limit(self, num_slots: int, num_pages: int) -> int:
        assert self.memory is not None
        return min(num_slots, int(num_pages / self.memory.slot_pages))

    def last(self, path: list[PrefixNode]) -> int:
        """Returns the length of a path up to its last checkpoint; 0 without one."""
        # [task 6.5.1 last]
        depth = len(path)
        while depth and path[depth - 1] not in self.by_node:
            depth -= 1
        return depth
        # [/task 6.5.1 last]

    def allocate(self, below: float = math.inf, num_reserved: int = 0) -> int:
        """Allocates a slot, evicting a checkpoint if none is free; −1 on failure.

        Without a limit on the priority, also evicts pages that share their memory with the slots.

        Args:
            below: priority below which a checkpoint may be evicted.
            num_reserved: free or evictable slots that must remain.
        """
        if self.num_available <= num_reserved:
            return -1
        if self.memory is not None and below == math.inf and self._allocator.num_free > 0:
            self.memory.evict_until_free(math.ceil(self.memory.slot_pages))
        if self.num_free == 0 and not self.evict(below):
            return -1
        return self._allocator.allocate()[0]

    def evict(self, below: float = math.inf) -> bool:
        """Evicts the checkpoint with the lowest priority, if it is less than `below`.

        Returns whether a checkpoint was evicted.
        """
        evictable = self.evictable
        if not evictable:
            return False
        # [task 6.5.4 evict]
        victim = min(evictable, key=lambda node: self.by_node[node].priority)
        priority = self.by_node[victim].priority
        if priority >= below:
            return False
        # A demoted checkpoint may have a priority below the clock, which must not decrease.
        self._clock = max(self._clock, priority)
        self.discard(victim)
        # [/task 6.5.4 evict]
        return True

    def evict_superseded(self) -> bool:
        """Evicts a checkpoint that has lost its value; returns False if there is none."""
        return self.evict(self._clock + 1)

    def allocate_other(self, node: PrefixNode, num_reserved: int) -> int:
        """Allocates a slot for a request whose current slot is `node`'s checkpoint.

        Uses a free slot, or evicts a checkpoint with a lower priority than `node`'s or, if `node`'s
        is rolling, with a priority of at most the eviction clock. On failure, discards `node`'s
        checkpoint and returns −1: the request overwrites its current slot.
        """
        checkpoint = self.by_node[node]
        below = self._clock + 1 if checkpoint.is_rolling else checkpoint.priority
        slot = self.allocate(below, num_reserved)
        if slot < 0:
            self.discard(node)
        return slot

    def add(self, node: PrefixNode, slot: int, is_rolling: bool, is_branch: bool) -> None:
        """Makes `slot` a node's checkpoint; takes over the caller's reference.

        Args:
            is_branch: whether different requests are known to share the node.
        """
        pages, ancestor = self._pages_since_checkpoint(node)
        checkpoint = Checkpoint(slot, pages, is_rolling, self._clock + pages, ancestor)
        checkpoint.num_hits = 2 if is_branch else 0
        self.by_node[node] = checkpoint
        if not is_rolling:
            self._demote_before(checkpoint, 1)
            self.on_add(node)
        previous = self.by_node.get(ancestor)
        if previous is not None and previous.is_rolling and previous.num_hits == 0:
            has_branch = any(len(each.children) > 1 for each in _ancestors(node, pages))
            if not has_branch:
                self.discard(ancestor)

    def _pages_since_checkpoint(self, node: PrefixNode) -> tuple[int, PrefixNode]:
        """Returns `pages` and `ancestor` of a new `Checkpoint` at `node`."""
        assert node.parent is not None
        # [task 6.5.4 value]
        pages, ancestor = 1, node.parent
        while ancestor.parent is not None and ancestor not in self.by_node:
            pages, ancestor = pages + 1, ancestor.parent
        return pages, ancestor
        # [/task 6.5.4 value]

    def hit(self, node: PrefixNode) -> int:
        """Returns the slot of a node's checkpoint; the caller becomes an owner."""
        checkpoint = self.by_node[node]
        self._demote_before(checkpoint, 0)
        # [task 6.5.1 hit]
        checkpoint.num_hits += 1
        checkpoint.priority = self._clock + checkpoint.pages
        self._allocator.share(checkpoint.slot)
        return checkpoint.slot
        # [/task 6.5.1 hit]

    def _demote_before(self, checkpoint: Checkpoint, min_hits: int) -> None:
        """Caps the priority of earlier checkpoints on the path at the eviction clock.

        Applies to checkpoints with at least `min_hits` hits and at most one.
        """
        while checkpoint.ancestor in self.by_node:
            checkpoint = self.by_node[checkpoint.ancestor]
            if min_hits <= checkpoint.num_hits <= 1:
                checkpoint.priority = min(checkpoint.priority, self._clock)

    def discard(self, node: PrefixNode) -> None:
        """Removes a node's checkpoint, if any; a request using the slot keeps it.

        Checkpoints whose `ancestor` is `node` inherit the removed checkpoint's `ancestor` and add
        its `pages` to theirs.
        """
        checkpoint = self.by_node.pop(node, None)
        if checkpoint is None:
            return
        self._allocator.free(checkpoint.slot)
        # [task 6.5.4 inherit]
        for other in self.by_node.values():
            if other.ancestor is node:
                other.ancestor = checkpoint.ancestor
                other.pages += checkpoint.pages
                other.priority += checkpoint.pages
        # [/task 6.5.4 inherit]

    def check_integrity(self) -> None:
        for node, checkpoint in self.by_node.items():
            assert node.parent is not None
            assert node.parent.children[node.tokens] is node, (
                f"page {node.page} has a checkpoint, but is not in the prefix cache"
            )
            pages, ancestor = 1, node.parent
            while ancestor is not checkpoint.ancestor:
                assert ancestor.parent is not None
                pages, ancestor = pages + 1, ancestor.parent
            assert pages == checkpoint.pages
            assert ancestor.parent is None or ancestor in self.by_node


def _ancestors(node: PrefixNode, count: int) -> Iterator[PrefixNode]:
    for _ in range(count):
        assert node.parent is not None
        node = node.parent
        yield node
