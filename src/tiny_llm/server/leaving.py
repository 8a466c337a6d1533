"""An answer is computed as long as its client is there.

That a client has left is seen only through ASGI's `receive`, so something waits there while the
engine computes. Whatever happens, the generation is closed, and its place in the engine free.
"""

import asyncio
from types import TracebackType

from starlette.types import Receive

from .bridge import Generation


class WhileConnected:
    """A block that is cut off when the client leaves or reads too slowly; it then ends quietly.

    Args:
        receive: ASGI's.
        generation: what the block answers with; it is closed at the end of the block.

    Attributes:
        is_slow: whether the block was cut off because the client reads too slowly.
    """

    def __init__(self, receive: Receive, generation: Generation):
        self.is_slow = False
        self._receive = receive
        self._generation = generation
        self._is_over = False  # also once it is cut off
        self._was_cut = False

    def __enter__(self) -> "WhileConnected":
        """Begins to watch; the block is a part of the current task."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._leaving = asyncio.create_task(until_left(self._receive))
        self._leaving.add_done_callback(lambda _: self._cut())
        self._generation.on_overdue = self._drop
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        """Ends it; says whether what has ended it is no error."""
        self._is_over = True
        self._leaving.cancel()
        self._generation.on_overdue = None
        self._generation.close()
        # Something else may have cancelled the task as well; then that goes on.
        is_ours = self._was_cut and kind is asyncio.CancelledError
        return is_ours and self._task.uncancel() == 0

    def _drop(self) -> None:
        self.is_slow = self.is_slow or not self._is_over
        self._cut()

    def _cut(self) -> None:
        if not self._is_over:
            self._is_over = self._was_cut = True
            self._task.cancel()


async def until_left(receive: Receive) -> None:
    """Waits until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
