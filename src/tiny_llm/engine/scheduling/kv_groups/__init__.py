"""KV cache groups: pages of layers with different windows or row sizes.

The ids of a block's pages are consecutive in `page_ids`, group after group. −1 takes the place of a
page that a group has freed, because it is before the window, or does not need yet:

    block                  0      1      2      3
    full attention         7      4      9      2
    window of 1.5 blocks  −1     −1      5      8

Groups are in order of decreasing window, so a later group's page is useless without the first
group's. All groups share one free list and, in the prefix cache, one tree and one LRU order.

Reading order: group_cache, group_manager.
"""

from .group_cache import BlockNode, GroupPrefixCache
from .group_manager import GroupPageManager

__all__ = ["BlockNode", "GroupPageManager", "GroupPrefixCache"]
