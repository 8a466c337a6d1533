"""Bounded per-client queue of generated output awaiting delivery.

Urgent outputs (a completion's first token, its end, an error) wake the reader at once; the others
are coalesced (`coalescer.py`).

The engine never blocks on a reader. When the queue is full, new output is merged into the last
queued output of the same completion: nothing is lost and the length stays bounded. A reader that
leaves the queue full for too long is dropped.
"""

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import Callable

from ...engine.scheduling.outputs import StreamOutput
from ..http.errors import ApiError
from .coalescer import WakeCallback

QueueItem = StreamOutput | ApiError


class OutputQueue:
    """Outputs for one client; used on the event loop only, with a single reader.

    Args:
        limit: maximum number of outputs; then outputs are merged.
        stall_timeout: maximum seconds for which the queue may stay full.
        schedule_wake: `Coalescer.schedule_wake`, for outputs that are not urgent.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        limit: int,
        stall_timeout: float,
        schedule_wake: Callable[[WakeCallback], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._stall_timeout = stall_timeout
        self._wake_later = schedule_wake
        self._clock = clock
        self._items: deque[QueueItem] = deque()
        self._waiter: asyncio.Future[None] | None = None  # the reader
        self._full_since: float | None = None
        self._wake_scheduled = False  # whether a delayed wake is pending

    def put(self, item: QueueItem) -> None:
        """Adds an output, or the error that ends the request."""
        if isinstance(item, StreamOutput) and len(self._items) >= self._limit:
            self._full_since = self._full_since or self._clock()
            if self._merge(item):
                return
        self._items.append(item)
        if self._waiter is None:
            return
        if not isinstance(item, StreamOutput) or item.is_urgent:
            self._wake()
        elif not self._wake_scheduled:
            self._wake_scheduled = True
            self._wake_later(self._wake)

    @property
    def is_stalled(self) -> bool:
        """Whether the queue has been full for longer than `stall_timeout`."""
        return (
            self._full_since is not None and self._clock() - self._full_since > self._stall_timeout
        )

    async def get(self) -> list[QueueItem]:
        """Waits for at least one item; returns and removes all."""
        if not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        self._full_since = None
        items = list(self._items)
        self._items.clear()
        return items

    def _wake(self) -> None:
        self._wake_scheduled = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _merge(self, new: StreamOutput) -> bool:
        """Merges an output into the last queued one of its completion; False if none."""
        for position in range(len(self._items) - 1, -1, -1):
            old = self._items[position]
            if isinstance(old, StreamOutput) and (old.request_id, old.index) == (
                new.request_id,
                new.index,
            ):
                logprobs = (old.logprobs or []) + (new.logprobs or [])
                self._items[position] = dataclasses.replace(
                    new,
                    text=old.text + new.text,
                    token_ids=old.token_ids + new.token_ids,
                    logprobs=logprobs or None,
                    prompt_logprobs=old.prompt_logprobs or new.prompt_logprobs,
                    is_first=old.is_first,
                )
                return True
        return False
