"""A client's buffer: pieces of answers that the engine has made and the client has not read.

The reader is woken at once for the first piece of an answer, for an end and for an error; pieces in
between are read together when they come quickly (`pacer.py`).

The engine never waits for a reader. When the buffer is full, new text is joined to the last piece
of the same answer, so that nothing is lost and the number of pieces stays bounded; a reader that
leaves it full for too long is dropped.
"""

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import Callable

from .errors import ApiError
from .pacer import Wake
from .seam import Piece

Item = Piece | ApiError


class Mailbox:
    """Pieces on their way to one client; used by the event loop alone.

    Args:
        limit: pieces that wait, at most, for each answer of the request.
        patience: seconds for which it may be full.
        wake_later: calls a function when pieces that are not urgent have waited long enough.
        clock: the time in seconds.

    Attributes:
        overdue: whether it has been full for longer than that.
    """

    def __init__(
        self,
        limit: int,
        patience: float,
        wake_later: Callable[[Wake], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._patience = patience
        self._wake_later = wake_later
        self._clock = clock
        self._items: deque[Item] = deque()
        self._waiting: asyncio.Future[None] | None = None  # for the next item
        self._full_since: float | None = None
        self._is_late = False  # whether the reader will be woken later

    def put(self, item: Item) -> None:
        """Adds a piece, or the error that ends everything."""
        if isinstance(item, Piece) and len(self._items) >= self._limit:
            self._full_since = self._full_since or self._clock()
            if self._join(item):
                return
        self._items.append(item)
        if self._waiting is None:
            return
        if not isinstance(item, Piece) or item.is_urgent:
            self._wake()
        elif not self._is_late:
            self._is_late = True
            self._wake_later(self._wake)

    @property
    def overdue(self) -> bool:
        """See the class."""
        return self._full_since is not None and self._clock() - self._full_since > self._patience

    async def get(self) -> list[Item]:
        """All pieces that are there, and the error, if it has come; waits for one. One reader."""
        if not self._items:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
            self._waiting = None
        self._full_since = None
        items = list(self._items)
        self._items.clear()
        return items

    def _wake(self) -> None:
        self._is_late = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _join(self, new: Piece) -> bool:
        """Joins a piece to the last of the same answer; False if there is none."""
        for place in range(len(self._items) - 1, -1, -1):
            old = self._items[place]
            if isinstance(old, Piece) and (old.request_id, old.index) == (
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
