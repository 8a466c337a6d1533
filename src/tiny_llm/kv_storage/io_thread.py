"""IOThread: a thread that reads and writes pages.

Engine steps never wait for the disk: they queue pages to write, and collect pages that the thread
has read and verified. Reads take priority, because requests wait for them. Queued and uncollected
pages are bounded in bytes. Only this thread modifies files.
"""

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

from .page_store import Buffer, PageStore

log = logging.getLogger("tiny_llm.engine")

MAX_QUEUED_BYTES = 2**26  # bound on the write queue; a larger page is queued alone
MAX_READ_BYTES = 2**25  # bound on uncollected pages of all loads; a larger page is read alone
REFRESH_SECONDS = 1.0  # interval between checks for pages added by other processes
RETRY_SECONDS = 60.0  # pause in writing after an error, e.g. a full disk
STALL_SECONDS = 10.0  # longer reads and writes end all loads, e.g. if a network disk hangs
# Errors after which the file may be intact, so it is not deleted.
TRANSIENT_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT)


class PageLoad:
    """Pages to read, in order, at least one: (key, number of bytes) pairs."""

    def __init__(self, pages: Sequence[tuple[bytes, int]]):
        assert pages
        self.unread = deque(pages)
        self.payloads: list[bytes] = []  # read but not collected


class IOThread(threading.Thread):
    """Thread that serves loads, then queued writes, each in FIFO order."""

    def __init__(self, store: PageStore):
        super().__init__(name="page I/O", daemon=True)
        self.read_bytes = self.written_bytes = self.num_errors = 0
        self._store = store
        self._changed = threading.Condition()  # guards the queues
        self._progress = threading.Event()  # a page or end of a load can be collected
        self._loads: list[PageLoad] = []
        self._uncollected_bytes = 0
        self._writes: deque[tuple[bytes, Buffer, int]] = deque()
        self._queued_bytes = 0  # of queued pages and of the page being written
        self._used: dict[bytes, int] = {}
        self._call_started: float | None = None  # start time of the current read or write
        self._paused_until = self._next_update = 0.0
        self._is_closed = False

    @property
    def is_stalled(self) -> bool:
        started = self._call_started
        return started is not None and time.monotonic() - started > STALL_SECONDS

    @property
    def is_paused(self) -> bool:
        """Whether writes are paused after an error."""
        return time.monotonic() < self._paused_until

    def can_queue(self, num_bytes: int) -> bool:
        """Whether `put` may queue `num_bytes`; False while writes are paused."""
        max_bytes = max(MAX_QUEUED_BYTES, num_bytes)
        return not self.is_paused and self._queued_bytes + num_bytes <= max_bytes

    def put(self, key: bytes, payload: Buffer, depth: int) -> None:
        """Queues a page to be written; see `PageStore.write`."""
        with self._changed:
            self._writes.append((key, payload, depth))
            self._queued_bytes += len(payload)
            self._changed.notify_all()

    def touch(self, used: Mapping[bytes, int]) -> None:
        """Sets pages' times of last use, in ns, within `REFRESH_SECONDS`."""
        with self._changed:
            self._used.update(used)

    def start_load(self, pages: Sequence[tuple[bytes, int]]) -> PageLoad:
        load = PageLoad(pages)
        with self._changed:
            self._loads.append(load)
            self._changed.notify_all()
        return load

    def collect(self, load: PageLoad) -> tuple[list[bytes], bool]:
        """Returns the pages read since the last call and whether the load has ended.

        A load ends early at an unreadable page, or if the disk stalls.
        """
        with self._changed:
            payloads, load.payloads = load.payloads, []
            self._uncollected_bytes -= sum(map(len, payloads))
            self._changed.notify_all()
            return payloads, load not in self._loads or self.is_stalled

    def cancel(self, load: PageLoad) -> None:
        with self._changed:
            if load in self._loads:
                self._loads.remove(load)
        self.collect(load)

    def wait(self, timeout: float) -> None:
        """Waits up to `timeout` seconds until a page or end of a load can be collected.

        May return early if it has been collected since the last wait.
        """
        self._progress.wait(timeout)
        self._progress.clear()

    def flush(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds; returns whether all queued pages are written."""
        with self._changed:
            return self._changed.wait_for(lambda: self._queued_bytes == 0, timeout)

    def close(self, timeout: float) -> None:
        """Stops the thread once the queue has drained; waits up to `timeout` seconds."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        # A finalizer may call this on this thread, which cannot join itself.
        if self is not threading.current_thread():
            self.join(timeout)

    def run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._can_read() or self._writes or self._is_closed, REFRESH_SECONDS
                )
                if self._is_closed and not self._writes:
                    break
                load = self._loads[0] if self._can_read() else None
                page = self._writes.popleft() if load is None and self._writes else None
            self._call_started = time.monotonic()
            if load is not None:
                self._read(load)
            if page is not None:
                self._write(*page)
            if time.monotonic() >= self._next_update:
                self._update()
            self._call_started = None
        self._update()

    def _can_read(self) -> bool:
        if not self._loads or self._is_closed:
            return False
        _, num_bytes = self._loads[0].unread[0]
        return self._uncollected_bytes + num_bytes <= max(MAX_READ_BYTES, num_bytes)

    def _read(self, load: PageLoad) -> None:
        """Reads a load's next page; on an error, ends the load.

        Unless the error is transient, deletes the page and those after it, which are useless
        without it.
        """
        payload = None
        try:
            payload = self._store.read(*load.unread[0])
            self.read_bytes += len(payload)
        except (OSError, MemoryError) as error:
            if not isinstance(error, FileNotFoundError):  # evicted by another process
                self._warn(f"cannot read a page ({error}); recomputing it")
            if getattr(error, "errno", errno.ENOMEM) not in TRANSIENT_ERRORS:
                with suppress(OSError):
                    self._store.delete(key for key, _ in load.unread)
        with self._changed:
            if load in self._loads:  # otherwise it was cancelled
                load.unread.popleft()
                if payload is not None:
                    load.payloads.append(payload)
                    self._uncollected_bytes += len(payload)
                if payload is None or not load.unread:
                    self._loads.remove(load)
        self._progress.set()

    def _write(self, key: bytes, payload: Buffer, depth: int) -> None:
        try:
            self.written_bytes += self._store.write(key, payload, depth)
        except (OSError, MemoryError) as error:
            self._paused_until = time.monotonic() + RETRY_SECONDS
            self._warn(f"cannot write pages ({error})")
        with self._changed:
            self._queued_bytes -= len(payload)
            self._changed.notify_all()

    def _update(self) -> None:
        with self._changed:
            used, self._used = self._used, {}
        self._next_update = time.monotonic() + REFRESH_SECONDS
        try:
            self._store.touch(used)
            self._store.refresh()
        except (OSError, MemoryError) as error:
            self._next_update += RETRY_SECONDS
            self._warn(f"cannot update the directory ({error})")

    def _warn(self, problem: str) -> None:
        """Counts an error; logs the first as a warning, later ones at debug level."""
        self.num_errors += 1
        level = logging.DEBUG if self.num_errors > 1 else logging.WARNING
        log.log(level, "disk prefix cache: %s. Requests are not affected.", problem)
