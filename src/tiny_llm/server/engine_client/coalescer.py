"""When the event loop looks at the engine's news, and when readers of answers are woken.

To wake the loop, and to write to a socket, costs more than the token that is told. A small model's
step takes a few milliseconds, and a screen shows nothing sooner than after sixteen. So only what is
urgent wakes the loop: the first token of an answer, an end, an error, and any news if the last are
old. What comes in between waits until the loop looks again, some milliseconds later, and goes to
all readers then. The more streams there are, the longer it waits: two milliseconds for each, so
that there are at most 500 writes a second, until that is more than people would take for smooth.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable

from .messages import EngineMessage, StepReport

WakeCallback = Callable[[], None]

MIN_DELAY, MAX_DELAY = 0.01, 0.03  # seconds between two looks: seen by nobody, and by few
DELAY_PER_STREAM = 0.002  # seconds for each stream that is open


def coalescing_delay(streams: int) -> float:
    """How long news wait for others at most, if they come faster than that."""
    return min(MAX_DELAY, max(MIN_DELAY, DELAY_PER_STREAM * streams))


class Coalescer:
    """Brings news from the engine's thread to the event loop.

    Args:
        take: is called on the loop with each message, in order.
        delay: the seconds between two looks.
    """

    def __init__(self, take: Callable[[EngineMessage], None], delay: Callable[[], float]):
        self._take = take
        self._delay = delay
        self._loop: asyncio.AbstractEventLoop | None = None
        self._messages: deque[EngineMessage] = deque()
        self._pending_wakes: list[WakeCallback] = []
        self._next_flush = 0.0  # when the loop looks, if that is to come

    def start(self) -> None:
        """Works for the event loop that runs."""
        self._loop = asyncio.get_running_loop()

    def post(self, message: EngineMessage) -> None:
        """Called in the engine's thread: takes news, and wakes the loop if they are not to wait."""
        assert self._loop is not None
        self._messages.append(message)  # before the look at the clock: the loop reads them after it
        can_wait = isinstance(message, StepReport) and not message.is_urgent
        if not can_wait or time.monotonic() >= self._next_flush:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(self._flush)

    def schedule_wake(self, wake: WakeCallback) -> None:
        """Calls a function at the end of a look for which the time had come; it must not raise."""
        self._pending_wakes.append(wake)

    def _flush(self) -> None:
        """Hands on what there is. Readers that wait, too, are woken if it is time."""
        now = time.monotonic()
        is_time = now >= self._next_flush
        is_news = bool(self._messages)
        while self._messages:
            self._take(self._messages.popleft())
        if not is_time or not (is_news or self._pending_wakes):
            return  # in the first case, a timer is set already
        pending_wakes, self._pending_wakes = self._pending_wakes, []
        for wake in pending_wakes:
            wake()
        assert self._loop is not None
        seconds = self._delay()
        self._next_flush = now + seconds
        self._loop.call_later(seconds + 1e-6, self._flush)
