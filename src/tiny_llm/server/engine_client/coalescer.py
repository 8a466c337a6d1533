"""Coalescer: delivery of the engine thread's reports, with few wake-ups.

Waking the event loop and writing to a socket for every token is expensive: a small model's step
takes a few milliseconds, while a display refreshes every 16 ms. Therefore only urgent messages wake
the loop immediately: a completion's first token, its end, an error, and any message after a pause.
All others are delivered together at the next flush. The delay is 2 ms per stream, clamped to
`MIN_DELAY`..`MAX_DELAY`: up to 15 streams together make at most 500 writes per second, and with
more, text still appears smoothly.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable

from .messages import EngineMessage, StepReport

WakeCallback = Callable[[], None]

MIN_DELAY, MAX_DELAY = 0.01, 0.03  # seconds between flushes
DELAY_PER_STREAM = 0.002  # seconds of delay per open stream


def coalescing_delay(num_streams: int) -> float:
    """Maximum delay for coalescing output, in seconds."""
    return min(MAX_DELAY, max(MIN_DELAY, DELAY_PER_STREAM * num_streams))


def is_urgent(report: StepReport) -> bool:
    """Whether a report contains anything besides mid-stream tokens."""
    if report.events or report.snapshot is not None:
        return True
    return any(output.is_urgent for output in report.outputs)


class Coalescer:
    """Delivers the engine thread's messages to the event loop.

    Args:
        handle_message: called on the loop with each message, in order.
        delay: returns the seconds until the next flush.
    """

    def __init__(self, handle_message: Callable[[EngineMessage], None], delay: Callable[[], float]):
        self._handle_message = handle_message
        self._delay = delay
        self._loop: asyncio.AbstractEventLoop | None = None
        self._messages: deque[EngineMessage] = deque()
        self._pending_wakes: list[WakeCallback] = []
        self._next_flush = 0.0  # time of the scheduled flush; in the past if none is scheduled

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def post(self, message: EngineMessage) -> None:
        """Queues a message from the engine thread; wakes the loop if it is urgent."""
        assert self._loop is not None
        # [task 5.2.4 post]
        # Append before the check, so that a concurrent `_flush` delivers the message.
        self._messages.append(message)
        can_wait = isinstance(message, StepReport) and not is_urgent(message)
        if not can_wait or time.monotonic() >= self._next_flush:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process is exiting
                self._loop.call_soon_threadsafe(self._flush)
        # [/task 5.2.4 post]

    def schedule_wake(self, wake: WakeCallback) -> None:
        """Calls `wake` at the end of the next scheduled flush; `wake` must not raise."""
        self._pending_wakes.append(wake)

    def _flush(self) -> None:
        now = time.monotonic()
        is_due = now >= self._next_flush
        has_messages = bool(self._messages)
        while self._messages:
            self._handle_message(self._messages.popleft())
        if not is_due or not (has_messages or self._pending_wakes):
            return  # if not due, a timer is already set
        pending_wakes, self._pending_wakes = self._pending_wakes, []
        for wake in pending_wakes:
            wake()
        assert self._loop is not None
        seconds = self._delay()
        self._next_flush = now + seconds
        self._loop.call_later(seconds + 1e-6, self._flush)
