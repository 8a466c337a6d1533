"""Cancellation of a request when its client disconnects.

ASGI reports a disconnect only through `receive`, so a task awaits it during generation. On exit,
the request is always closed, which releases its engine resources.
"""

import asyncio
from types import TracebackType

from starlette.types import Receive

from ..engine_client.client import RequestHandle


class CancelOnDisconnect:
    """Context manager that cancels its block when the client disconnects or reads too slowly.

    The cancellation does not propagate out of the block.

    Args:
        receive: ASGI's `receive`.
        handle: the request; closed on exit.

    Attributes:
        is_slow: whether the block was cancelled because of a slow client.
    """

    def __init__(self, receive: Receive, handle: RequestHandle):
        self.is_slow = False
        self._receive = receive
        self._handle = handle
        self._is_done = False  # whether the block has exited or been cancelled
        self._was_cancelled = False

    def __enter__(self) -> "CancelOnDisconnect":
        """Starts watching for a disconnect; the block runs in the current task."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._disconnect_task = asyncio.create_task(wait_for_disconnect(self._receive))
        self._disconnect_task.add_done_callback(lambda _: self._cancel_task())
        self._handle.on_slow_reader = self._on_slow_reader
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        """Closes the request; suppresses a cancellation by `_cancel_task`."""
        # [task 5.1.4 leave]
        self._is_done = True
        self._disconnect_task.cancel()
        self._handle.on_slow_reader = None
        self._handle.close()
        # A concurrent cancellation from elsewhere must still propagate.
        is_ours = self._was_cancelled and kind is asyncio.CancelledError
        return is_ours and self._task.uncancel() == 0
        # [/task 5.1.4 leave]

    def _on_slow_reader(self) -> None:
        self.is_slow = self.is_slow or not self._is_done
        self._cancel_task()

    def _cancel_task(self) -> None:
        """Cancels the block, at most once and only while it runs."""
        # [task 5.1.4 cancel]
        if not self._is_done:
            self._is_done = self._was_cancelled = True
            self._task.cancel()
        # [/task 5.1.4 cancel]


async def wait_for_disconnect(receive: Receive) -> None:
    """Waits until the client closes the connection."""
    # [task 5.1.4 wait]
    while (await receive())["type"] != "http.disconnect":
        pass
    # [/task 5.1.4 wait]
