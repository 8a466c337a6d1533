"""PageWriter: a thread that writes pages and maintains the index.

Engine steps never wait for the disk, because they only queue pages. The queue is bounded in bytes,
so callers check `can_queue` before `put`. All changes to the files and the index are made on this
thread.
"""

import logging
import threading
import time
from collections.abc import Iterable, Sequence

from .store import STORE_ERRORS, PageStore, StoredPage

log = logging.getLogger("tiny_llm.engine")

MAX_QUEUED_BYTES = 2**26
MAX_BATCH = 16  # pages per transaction
REFRESH_SECONDS = 1.0  # interval between checks for pages added by other processes
RETRY_SECONDS = 60.0  # pause in writing after an error, e.g. a full disk


class PageWriter(threading.Thread):
    """Thread that writes queued pages in FIFO order."""

    def __init__(self, store: PageStore):
        super().__init__(name="page writer", daemon=True)
        self.written_bytes = 0
        self.num_errors = 0
        self._store = store
        self._changed = threading.Condition()
        self._pages: list[StoredPage] = []
        self._queued_bytes = 0  # of queued pages and of the batch being written
        self._used: dict[bytes, None] = {}
        self._unreadable: list[bytes] = []
        self._paused_until = 0.0
        self._is_closed = False
        self._has_warned = False

    def can_queue(self, num_bytes: int) -> bool:
        """Whether the queue has room for `num_bytes`; False while paused by an error."""
        with self._changed:
            is_paused = time.monotonic() < self._paused_until
            return not is_paused and self._queued_bytes + num_bytes <= MAX_QUEUED_BYTES

    def put(self, page: StoredPage) -> None:
        with self._changed:
            self._pages.append(page)
            self._queued_bytes += len(page.payload)
            self._changed.notify_all()

    def touch(self, keys: Iterable[bytes]) -> None:
        """Marks pages as the most recently used; the thread updates the index later."""
        with self._changed:
            self._used.update(dict.fromkeys(keys))

    def discard(self, keys: Sequence[bytes], problem: str | None) -> None:
        """Removes unusable pages; counts and logs `problem` unless it is None."""
        # Not deferred to the writer thread, so that pages recomputed meanwhile are written again.
        self._store.invalidate(keys)
        with self._changed:
            self._unreadable += keys
            self._changed.notify_all()
        if problem is not None:
            self.warn(problem)

    def warn(self, problem: str) -> None:
        """Counts an error; logs the first as a warning, later ones at debug level."""
        self.num_errors += 1
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        log.log(level, "disk prefix cache: %s. Requests are not affected.", problem)

    def flush(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds; returns whether the queue has drained."""
        with self._changed:
            return self._changed.wait_for(lambda: self._queued_bytes == 0, timeout)

    def close(self, timeout: float) -> None:
        """Stops the thread once the queue has drained; waits up to `timeout` seconds."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        # A finalizer may call this on the writer thread, which cannot join itself.
        if self is not threading.current_thread():
            self.join(timeout)

    def run(self) -> None:
        try:
            self._store.sweep()
        except STORE_ERRORS as error:
            self.warn(f"cannot clean up the directory ({error})")
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._pages or self._unreadable or self._is_closed, REFRESH_SECONDS
                )
                if self._is_closed and not self._pages:
                    break
                batch, self._pages = self._pages[:MAX_BATCH], self._pages[MAX_BATCH:]
                used, self._used = self._used, {}
                unreadable, self._unreadable = self._unreadable, []
            self._update(used, unreadable)
            if batch:
                self._write(batch)
        self._store.close()

    def _update(self, used: dict[bytes, None], unreadable: Sequence[bytes]) -> None:
        try:
            if used:
                self._store.touch(used)
            if unreadable:
                self._store.delete(unreadable)
            self._store.refresh()
        except STORE_ERRORS as error:
            self.warn(f"cannot update the index ({error})")

    def _write(self, batch: Sequence[StoredPage]) -> None:
        try:
            self.written_bytes += self._store.write(batch)
        except STORE_ERRORS as error:
            self._paused_until = time.monotonic() + RETRY_SECONDS
            self.warn(f"cannot write pages ({error})")
        with self._changed:
            self._queued_bytes -= sum(len(page.payload) for page in batch)
            self._changed.notify_all()
