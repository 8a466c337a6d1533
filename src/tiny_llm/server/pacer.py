"""When readers of answers are woken: what comes in quick steps is written together.

A write to a socket costs more than the token in it. A small model's step takes a few milliseconds,
and a screen shows nothing sooner than after sixteen. So a reader is woken at once when its last
news is old, and else with all others that wait, a few milliseconds after the first of them. One
timer serves all readers.
"""

import asyncio
from collections.abc import Callable

Wake = Callable[[], None]


class Pacer:
    """Wakes readers later.

    Args:
        seconds: after which readers that wait are woken; 0 if none is to wait.

    Attributes:
        seconds: as given.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._late: list[Wake] = []

    def wake_later(self, wake: Wake) -> None:
        """Calls a function when the time of those that wait is over; it must not raise."""
        if not self._late:
            asyncio.get_running_loop().call_later(self.seconds, self._ring)
        self._late.append(wake)

    def _ring(self) -> None:
        late, self._late = self._late, []
        for wake in late:
            wake()
