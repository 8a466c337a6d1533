"""KV cache groups: pages of layers with different windows or row sizes.

A request's `page_ids` list each block's pages by group. −1 marks a page that is before the group's
window and released, or not yet allocated:

    block                  0      1      2      3
    full attention         7      4      9      2
    window of 1.5 blocks  −1     −1      5      8

Groups are ordered by decreasing window, full attention first, so a block's other pages are useless
without those of the first group. All groups share a free list and the prefix cache's LRU order.

Reading order: group_cache, group_manager.
"""

from .group_cache import BlockNode, GroupPrefixCache, longest_hit
from .group_manager import GroupPageManager

__all__ = ["BlockNode", "GroupPageManager", "GroupPrefixCache", "longest_hit"]
