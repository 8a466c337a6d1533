"""Estimate of one replica's prefix cache, from the keys sent to it.

A key is split into pieces of equal length. Each piece's hash also covers all pieces before it, so a
set of hashes is enough to find the longest known prefix:

    "You are a | helpful as | sistant. W"     hashes a, b, c
    "You are a | helpful as | sistant. H"     hashes a, b, d

It is only an estimate: the replica's cache has pages of tokens and evicts independently.
"""

from collections import OrderedDict

PIECE_LENGTH = 64  # characters; about half a page of 32 tokens


def piece_hashes(key: str) -> list[int]:
    """Returns the hash of each full-length piece of a key, ignoring a shorter remainder.

    Equal hashes mean equal prefixes, up to the end of the piece.
    """
    # [task 5.7.2 hashes]
    hashes, previous = [], 0
    for end in range(PIECE_LENGTH, len(key) + 1, PIECE_LENGTH):
        previous = hash((previous, key[end - PIECE_LENGTH : end]))
        hashes.append(previous)
    return hashes
    # [/task 5.7.2 hashes]


class PrefixIndex:
    """Pieces that a replica has probably cached, in LRU order.

    Args:
        capacity: maximum number of pieces.
    """

    def __init__(self, capacity: int):
        self._capacity = capacity
        self._pieces: OrderedDict[int, None] = OrderedDict()  # hashes, least recently used first

    @property
    def num_pieces(self) -> int:
        """Number of pieces, at most the capacity."""
        return len(self._pieces)

    def match(self, key: str) -> int:
        """Returns the length in characters of the longest known prefix of `key`.

        The length is a multiple of `PIECE_LENGTH`. Does not change the LRU order.
        """
        # [task 5.7.2 match]
        hashes = piece_hashes(key)
        for count, piece in enumerate(hashes):
            if piece not in self._pieces:
                return count * PIECE_LENGTH
        return len(hashes) * PIECE_LENGTH
        # [/task 5.7.2 match]

    def insert(self, key: str) -> None:
        """Makes a key's pieces the most recently used; evicts beyond the capacity.

        A piece is evicted before the pieces that precede it, because it is useless without them.
        """
        # [task 5.7.2 insert]
        for piece in reversed(piece_hashes(key)):
            self._pieces[piece] = None
            self._pieces.move_to_end(piece)
        while len(self._pieces) > self._capacity:
            self._pieces.popitem(last=False)
        # [/task 5.7.2 insert]
