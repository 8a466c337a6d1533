"""A client's buffer: pieces of answers that the engine has made and the client has not read.

The reader is woken at once for the first piece of an answer, for an end and for an error; pieces in
between are read together when they come quickly (`coalescer.py`).

The engine never waits for a reader. When the buffer is full, new text is joined to the last piece
of the same answer, so that nothing is lost and the number of pieces stays bounded; a reader that
leaves it full for too long is dropped.
"""

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import Callable

from ..http.errors import ApiError
from .coalescer import WakeCallback
from .messages import OutputDelta

QueueItem = OutputDelta | ApiError


class OutputQueue:
    """Pieces on their way to one client; used by the event loop alone.

    Args:
        limit: pieces that wait, at most, for each answer of the request.
        stall_timeout: seconds for which it may be full.
        schedule_wake: calls a function when pieces that are not urgent have waited long enough.
        clock: the time in seconds.

    Attributes:
        is_stalled: whether it has been full for longer than that.
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
        self._waiter: asyncio.Future[None] | None = None  # for the next item
        self._full_since: float | None = None
        self._wake_scheduled = False  # whether the reader will be woken later

    def put(self, item: QueueItem) -> None:
        """Adds a piece, or the error that ends everything."""
        if isinstance(item, OutputDelta) and len(self._items) >= self._limit:
            self._full_since = self._full_since or self._clock()
            if self._merge(item):
                return
        self._items.append(item)
        if self._waiter is None:
            return
        if not isinstance(item, OutputDelta) or item.is_urgent:
            self._wake()
        elif not self._wake_scheduled:
            self._wake_scheduled = True
            self._wake_later(self._wake)

    @property
    def is_stalled(self) -> bool:
        """See the class."""
        return (
            self._full_since is not None and self._clock() - self._full_since > self._stall_timeout
        )

    async def get(self) -> list[QueueItem]:
        """All pieces that are there, and the error, if it has come; waits for one. One reader."""
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

    def _merge(self, new: OutputDelta) -> bool:
        """Joins a piece to the last of the same answer; False if there is none."""
        for place in range(len(self._items) - 1, -1, -1):
            old = self._items[place]
            if isinstance(old, OutputDelta) and (old.request_id, old.index) == (
                new.request_id,
                new.index,
            ):
                logprobs = None if new.logprobs is None else (old.logprobs or ()) + new.logprobs
                self._items[place] = dataclasses.replace(
                    new,
                    text=old.text + new.text,
                    token_ids=old.token_ids + new.token_ids,
                    logprobs=logprobs,
                    prompt_logprobs=old.prompt_logprobs or new.prompt_logprobs,
                    is_first=old.is_first,
                )
                return True
        return False
