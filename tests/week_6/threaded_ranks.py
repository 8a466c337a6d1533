"""Ranks as threads: MLX's collectives without processes.

One rank computes at a time, and an exchange blocks until all ranks have sent. Sums are in the order
of MLX's ring, so the results equal those of separate processes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Barrier, Lock, Thread
from typing import Any

import mlx.core as mx

SECONDS = 20  # timeout of a rank's wait for the other ranks


@dataclass
class Ranks:
    """State shared by the ranks; `sums` and `gathers` have rank 0's shapes."""

    size: int
    sums: list[tuple[int, ...]] = field(default_factory=list)
    gathers: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sent: list[Any] = [None] * self.size
        self._barrier = Barrier(self.size, timeout=SECONDS)
        self._turn = Lock()  # held by the rank that is computing

    def exchange(self, rank: int, array: mx.array) -> list[mx.array]:
        """Sends a rank's array and returns the arrays of all ranks."""
        mx.eval(array)
        self._sent[rank] = array
        self._wait()
        received = list(self._sent)
        self._wait()  # wait until all ranks have read the arrays
        shapes = {each.shape for each in received}
        assert len(shapes) == 1, f"expected equal shapes on all ranks, got {sorted(shapes)}"
        return received

    def run(self, of_rank: Callable[["Rank"], Any]) -> list[Any]:
        """Returns the function's result on each rank, or raises a rank's error."""
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
            raise errors[0]  # the cause of BrokenBarrierErrors on the other ranks
        return results

    def _wait(self) -> None:
        self._turn.release()
        try:
            self._barrier.wait()
        finally:
            self._turn.acquire()


@dataclass(frozen=True)
class Rank:
    """Stand-in for `mx.distributed.Group`."""

    ranks: Ranks
    number: int

    def rank(self) -> int:
        return self.number

    def size(self) -> int:
        return self.ranks.size


def all_gather(x: mx.array, *, group: Rank) -> mx.array:
    """Concatenates the ranks' arrays along the first axis, as MLX does."""
    if group.number == 0:
        group.ranks.gathers.append(x.shape)
    return mx.concatenate(group.ranks.exchange(group.number, x))


def all_sum(x: mx.array, *, group: Rank) -> mx.array:
    """Sums the ranks' arrays in the order of MLX's ring, which affects rounding.

    The message is divided into one chunk per rank. The sum of chunk i starts on rank i.
    """
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
