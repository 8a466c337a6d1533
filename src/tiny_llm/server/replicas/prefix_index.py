"""Estimate of one replica's prefix cache, from the routing keys sent to it.

A key is split into chunks of equal length. Each chunk's hash also covers all chunks before it, so a
set of hashes is enough to find the longest known prefix:

    "You are a | helpful as | sistant. W"     hashes a, b, c
    "You are a | helpful as | sistant. H"     hashes a, b, d

The index is only an estimate: the replica's cache has pages of tokens and evicts independently.
"""

from collections import OrderedDict

CHUNK_LENGTH = 64  # characters; about half a page of 32 tokens


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
    """At most `capacity` chunks that a replica has probably cached, in LRU order."""

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
