"""Prefix-aware routing: request keys, prefix indexes of replicas, routers.

A router compares text, independently of the protocol. A request's key contains the parts of its
prompt in chat template order: system message, then the turns. It need not equal the prompt: two
keys only have to share a prefix if their prompts do.
"""

import json
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any, Protocol

# Prompt fields of all protocols, in prompt order.
FIELDS = ("system", "instructions", "messages", "input", "prompt")
CHUNK_LENGTH = 64  # characters; about half a page of 32 tokens


def routing_key(body: bytes) -> str:
    """Returns a request's routing key: the texts of `FIELDS`, joined by newlines.

    Fields without text are omitted. The key of invalid JSON, which the replica rejects, is empty.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(fields, dict):
        return ""
    # [task 5.7.1 key]
    return "\n".join(text for field in FIELDS if (text := _text(fields.get(field))))
    # [/task 5.7.1 key]


def _text(value: Any) -> str:
    """Joins all texts and token ids of a value with spaces, in order.

    Args:
        value: a string, an integer, a list of values, or an object with "text" or "content" (at
            most one of these occurs); anything else has no text. May be nested deeper than Python's
            recursion limit.
    """
    # [task 5.7.1 text]
    pending, texts = [value], []
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, int) and not isinstance(part, bool):
            texts.append(str(part))
        elif isinstance(part, list):
            pending.extend(reversed(part))
        elif isinstance(part, dict):
            pending.extend(part[name] for name in ("text", "content") if name in part)
    return " ".join(texts)
    # [/task 5.7.1 text]


def chunk_hashes(key: str) -> list[int]:
    """Returns the hashes of a key's chunks; ignores a shorter remainder.

    Equal hashes mean equal prefixes, up to the end of the chunk.
    """
    # [task 5.7.2 hashes]
    hashes, previous = [], 0
    for end in range(CHUNK_LENGTH, len(key) + 1, CHUNK_LENGTH):
        previous = hash((previous, key[end - CHUNK_LENGTH : end]))
        hashes.append(previous)
    return hashes
    # [/task 5.7.2 hashes]


class PrefixIndex:
    """Estimate of one replica's prefix cache, from the routing keys sent to it.

    Holds at most `capacity` chunks, in LRU order. A key is split into chunks of equal length. Each
    chunk's hash also covers all chunks before it, so a set of hashes is enough to find the longest
    known prefix:

        "You are a | helpful as | sistant. W"     hashes a, b, c
        "You are a | helpful as | sistant. H"     hashes a, b, d

    The replica's cache, in contrast, has pages of tokens and evicts independently.
    """

    def __init__(self, capacity: int):
        self._capacity = capacity
        self._chunks: OrderedDict[int, None] = OrderedDict()  # hashes, least recently used first

    @property
    def num_chunks(self) -> int:
        return len(self._chunks)

    def match(self, key: str) -> int:
        """Returns the length in characters of the longest known prefix of `key`.

        The length is a multiple of `CHUNK_LENGTH`. Does not change the LRU order.
        """
        # [task 5.7.2 match]
        hashes = chunk_hashes(key)
        for count, chunk in enumerate(hashes):
            if chunk not in self._chunks:
                return count * CHUNK_LENGTH
        return len(hashes) * CHUNK_LENGTH
        # [/task 5.7.2 match]

    def insert(self, key: str) -> None:
        """Makes a key's chunks the most recently used; evicts beyond the capacity.

        A chunk is evicted before the chunks that precede it, because it is useless without them.
        """
        # [task 5.7.2 insert]
        for chunk in reversed(chunk_hashes(key)):
            self._chunks[chunk] = None
            self._chunks.move_to_end(chunk)
        while len(self._chunks) > self._capacity:
            self._chunks.popitem(last=False)
        # [/task 5.7.2 insert]


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
    """Chooses the longest prefix match among the replicas that are not too busy, as Ray Serve does.

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
