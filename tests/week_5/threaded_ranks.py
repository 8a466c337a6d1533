"""Ranks without processes: each runs in a thread, and MLX's collectives are replaced.

One rank computes at a time. At an exchange it waits until all ranks have said what they send, so
what comes out is what a ring of processes would give.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Barrier, Lock, Thread
from typing import Any

import mlx.core as mx

SECONDS = 20  # that a rank waits for the others


@dataclass
class Ranks:
    """What the ranks share.

    Attributes:
        size: how many there are.
        sums, gathers: the shapes that rank 0 has sent.
    """

    size: int
    sums: list[tuple[int, ...]] = field(default_factory=list)
    gathers: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sent: list[Any] = [None] * self.size
        self._barrier = Barrier(self.size, timeout=SECONDS)
        self._turn = Lock()  # of the rank that computes

    def exchange(self, rank: int, array: mx.array) -> list[mx.array]:
        """Says what a rank sends, and returns what all of them have sent."""
        mx.eval(array)
        self._sent[rank] = array
        self._wait()
        received = list(self._sent)
        self._wait()  # until all have read it
        shapes = {each.shape for each in received}
        assert len(shapes) == 1, f"expected all ranks to send one shape, got {sorted(shapes)}"
        return received

    def run(self, of_rank: Callable[["Rank"], Any]) -> list[Any]:
        """What a function of the group returns on each rank.

        Raises:
            BaseException: what one of them raised; the others are let go.
        """
        results: list[Any] = [None] * self.size
        errors: list[BaseException] = []

        def work(rank: int) -> None:
            with self._turn:
                try:
                    results[rank] = of_rank(Rank(self, rank))
                    mx.eval(results[rank])
                except BaseException as error:
                    errors.append(error)
                    self._barrier.abort()

        threads = [Thread(target=work, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]  # the others were waiting for this one
        return results

    def _wait(self) -> None:
        self._turn.release()
        try:
            self._barrier.wait()
        finally:
            self._turn.acquire()


@dataclass(frozen=True)
class Rank:
    """Takes the place of an `mx.distributed.Group`."""

    ranks: Ranks
    number: int

    def rank(self) -> int:
        """Which one it is."""
        return self.number

    def size(self) -> int:
        """How many there are."""
        return self.ranks.size


def all_gather(x: mx.array, *, group: Rank) -> mx.array:
    """As MLX's: the ranks' arrays one after the other along the first axis."""
    if group.number == 0:
        group.ranks.gathers.append(x.shape)
    return mx.concatenate(group.ranks.exchange(group.number, x))


def all_sum(x: mx.array, *, group: Rank) -> mx.array:
    """As a ring's: where the sum begins depends on the place in the message."""
    if group.number == 0:
        group.ranks.sums.append(x.shape)
    parts = [each.reshape(-1) for each in group.ranks.exchange(group.number, x)]
    sums = []
    for first in range(group.size()):
        total = parts[first]
        for step in range(1, group.size()):
            total = total + parts[(first + step) % group.size()]
        sums.append(total)
    chunk = -(-x.size // group.size())
    which = mx.arange(x.size) // chunk
    return mx.stack(sums)[which, mx.arange(x.size)].reshape(x.shape)
