"""An answer is computed as long as its client is there.

That a client has left is seen only through ASGI's `receive`, so something waits there while the
engine computes. Whatever happens, the generation is closed, and its place in the engine free.
"""

import asyncio
from types import TracebackType

from starlette.types import Receive

from ..engine_client.client import RequestHandle


class CancelOnDisconnect:
    """A block that is cut off when the client leaves or reads too slowly; it then ends quietly.

    Args:
        receive: ASGI's.
        handle: what the block answers with; it is closed at the end of the block.

    Attributes:
        is_slow: whether the block was cut off because the client reads too slowly.
    """

    def __init__(self, receive: Receive, handle: RequestHandle):
        self.is_slow = False
        self._receive = receive
        self._handle = handle
        self._is_done = False  # also once it is cut off
        self._was_cancelled = False

    def __enter__(self) -> "CancelOnDisconnect":
        """Begins to watch; the block is a part of the current task."""
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
        """Ends it; says whether what has ended it is no error."""
        self._is_done = True
        self._disconnect_task.cancel()
        self._handle.on_slow_reader = None
        self._handle.close()
        # Something else may have cancelled the task as well; then that goes on.
        is_ours = self._was_cancelled and kind is asyncio.CancelledError
        return is_ours and self._task.uncancel() == 0

    def _on_slow_reader(self) -> None:
        self.is_slow = self.is_slow or not self._is_done
        self._cancel_task()

    def _cancel_task(self) -> None:
        if not self._is_done:
            self._is_done = self._was_cancelled = True
            self._task.cancel()


async def wait_for_disconnect(receive: Receive) -> None:
    """Waits until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
