"""Routers, which choose a replica for each request.

`PrefixAwareRouter` follows the policy of Ray Serve's prefix-aware router.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

from .prefix_index import PrefixIndex


class Router(Protocol):
    """Chooses a replica for each request; replicas are given by number."""

    def choose(self, key: str, loads: Mapping[int, int]) -> int:
        """Chooses the replica for a request, and records the choice.

        Args:
            key: routing key; may be empty.
            loads: number of requests in flight on each replica; not empty.
        """

    def forget(self, replica: int) -> None:
        """Drops the record of a lost replica's cache."""


class RoundRobinRouter:
    def __init__(self) -> None:
        self._num_requests = 0

    def choose(self, key: str, loads: Mapping[int, int]) -> int:
        self._num_requests += 1
        return sorted(loads)[self._num_requests % len(loads)]

    def forget(self, replica: int) -> None:
        """No-op."""


class PrefixAwareRouter:
    """Chooses the longest prefix match among the replicas that are not too busy.

    Args:
        capacity: estimated capacity of a replica's prefix cache, in chunks.
        max_imbalance: a replica is too busy if its requests in flight exceed those of the least
            busy replica by more than this.
        min_match: minimum fraction of the key that must match, so that a common system message does
            not route every conversation to the same replica.
    """

    def __init__(self, capacity: int, max_imbalance: int = 4, min_match: float = 0.5):
        self._max_imbalance = max_imbalance
        self._min_match = min_match
        self._indexes = defaultdict[int, PrefixIndex](lambda: PrefixIndex(capacity))

    def choose(self, key: str, loads: Mapping[int, int]) -> int:
        """See `Router.choose`.

        Without a sufficient match, chooses the least busy replica; among equals, the one whose
        index has the fewest chunks, then the first.
        """
        # [task 5.7.3 choose]
        limit = min(loads.values()) + self._max_imbalance

        def rank(replica: int) -> tuple[int, int, int]:
            index = self._indexes[replica]
            match = index.match(key)
            counts = match if match >= self._min_match * len(key) else 0
            return -counts, loads[replica], index.num_chunks

        chosen = min((one for one in sorted(loads) if loads[one] <= limit), key=rank)
        self._indexes[chosen].insert(key)
        return chosen
        # [/task 5.7.3 choose]

    def forget(self, replica: int) -> None:
        self._indexes.pop(replica, None)
