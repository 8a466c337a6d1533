"""Output delivery: coalesced wake-ups, and a bounded queue per client.

Waking the event loop and writing to a socket for every token is expensive: a small model's step
takes a few milliseconds, while a display refreshes every 16 ms. Therefore only urgent messages wake
the loop immediately: a completion's first token, its end, an error, and any message after a pause.
All others are delivered together at the next flush. The delay is 2 ms per stream, clamped to
`MIN_DELAY`..`MAX_DELAY`: up to 15 streams together make at most 500 writes per second, and with
more, text still appears smoothly.

The engine never blocks on a reader. When a queue is full, new output is merged into the last
queued output of the same completion: nothing is lost and the length stays bounded.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable

from ...engine.scheduling.outputs import StreamOutput
from ..http.errors import ApiError
from .messages import EngineMessage, StepReport

WakeCallback = Callable[[], None]

MIN_DELAY, MAX_DELAY = 0.01, 0.03  # seconds between flushes
DELAY_PER_STREAM = 0.002  # seconds of delay per open stream

QueueItem = StreamOutput | ApiError


def coalescing_delay(num_streams: int) -> float:
    """Maximum delay for coalescing output, in seconds."""
    return min(MAX_DELAY, max(MIN_DELAY, DELAY_PER_STREAM * num_streams))


def is_urgent(report: StepReport) -> bool:
    """Whether a report contains anything besides mid-stream tokens."""
    if report.events or report.snapshot is not None:
        return True
    return any(not isinstance(item, StreamOutput) or item.is_urgent for item in report.updates)


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


class OutputQueue:
    """Bounded queue of one client's outputs; event loop only, single reader.

    Args:
        limit: maximum number of queued outputs; beyond it, outputs are merged.
        schedule_wake: `Coalescer.schedule_wake`, for outputs that are not urgent.
    """

    def __init__(self, limit: int, schedule_wake: Callable[[WakeCallback], None]) -> None:
        self._limit = limit
        self._wake_later = schedule_wake
        self._items: deque[QueueItem] = deque()
        self._waiter: asyncio.Future[None] | None = None  # not None while the reader waits
        self._wake_scheduled = False  # whether a delayed wake is pending

    def put(self, item: QueueItem) -> None:
        """Adds an output, or the error that ends the request. Never blocks.

        If the queue is full, the output is merged into its completion's last queued output, if any.
        """
        # [task 5.2.1 put]
        if isinstance(item, StreamOutput) and len(self._items) >= self._limit and self._merge(item):
            return
        self._items.append(item)
        # [/task 5.2.1 put]
        if self._waiter is not None:
            self._wake_for(item)

    def _merge(self, new: StreamOutput) -> bool:
        """Merges into the completion's last queued output; False if none is queued."""
        # [task 5.2.1 merge]
        for position in reversed(range(len(self._items))):
            old = self._items[position]
            if isinstance(old, StreamOutput) and _completion(old) == _completion(new):
                self._items[position] = merge_outputs(old, new)
                return True
        return False
        # [/task 5.2.1 merge]

    async def get(self) -> list[QueueItem]:
        """Waits for at least one item, then removes and returns all items."""
        # [task 5.2.2 get]
        if not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        items = list(self._items)
        self._items.clear()
        return items
        # [/task 5.2.2 get]

    def _wake_for(self, item: QueueItem) -> None:
        if not isinstance(item, StreamOutput) or item.is_urgent:
            self._wake()
        elif not self._wake_scheduled:
            self._wake_scheduled = True
            self._wake_later(self._wake)

    def _wake(self) -> None:
        self._wake_scheduled = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def merge_outputs(old: StreamOutput, new: StreamOutput) -> StreamOutput:
    """Merges `new` into `old`, an earlier output of the same completion."""
    # [task 5.2.1 outputs]
    return dataclasses.replace(
        new,
        text=old.text + new.text,
        token_ids=old.token_ids + new.token_ids,
        logprobs=(old.logprobs or []) + (new.logprobs or []) or None,
        prompt_logprobs=old.prompt_logprobs or new.prompt_logprobs,
        is_first=old.is_first,
    )
    # [/task 5.2.1 outputs]


def _completion(output: StreamOutput) -> tuple[str, int]:
    return output.request_id, output.index
