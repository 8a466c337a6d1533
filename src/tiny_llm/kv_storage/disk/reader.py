"""PageReader: a thread that prefetches and verifies pages."""

import errno
import threading
import time
from collections import deque
from collections.abc import Sequence

from .page_file import CorruptPageError
from .store import PageStore
from .writer import PageWriter

MAX_PENDING_BYTES = 2**25  # limit on bytes read but not yet collected, over all loads
# After these errors, the file may be intact, so its page is not discarded.
TRANSIENT_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
STALL_SECONDS = 10.0  # longer reads are abandoned, e.g. if a network disk stops responding


class PageLoad:
    """Pages to be read, in order: (key, number of bytes) pairs."""

    def __init__(self, pages: Sequence[tuple[bytes, int]]):
        self.pages = pages
        self._payloads: deque[bytearray] = deque()
        self._is_done = False
        self._is_cancelled = False


class PageReader(threading.Thread):
    """Thread that reads one `PageLoad` at a time, in FIFO order."""

    def __init__(self, store: PageStore, writer: PageWriter):
        super().__init__(name="page reader", daemon=True)
        self.read_bytes = 0  # total of pages read and verified
        self._store, self._writer = store, writer
        self._changed = threading.Condition()
        self._loads: deque[PageLoad] = deque()
        self._pending_bytes = 0
        self._ended: set[PageLoad] = set()  # ended loads whose end is not yet collected
        self._read_started: float | None = None  # start time of the current read
        self._is_closed = False

    @property
    def is_stalled(self) -> bool:
        started = self._read_started
        return started is not None and time.monotonic() - started > STALL_SECONDS

    def start_load(self, pages: Sequence[tuple[bytes, int]]) -> PageLoad:
        load = PageLoad(pages)
        with self._changed:
            self._loads.append(load)
            self._changed.notify_all()
        return load

    def collect(self, load: PageLoad) -> tuple[list[bytearray], bool]:
        """Returns the pages read since the last call and whether the load has ended.

        A load ends early at an unreadable page, or if the disk stalls.
        """
        with self._changed:
            payloads = list(load._payloads)
            load._payloads.clear()
            self._pending_bytes -= sum(map(len, payloads))
            self._ended.discard(load)
            self._changed.notify_all()
            return payloads, load._is_done or self.is_stalled

    def cancel(self, load: PageLoad) -> None:
        load._is_cancelled = True
        self.collect(load)

    def wait(self, timeout: float) -> None:
        """Waits up to `timeout` seconds until a page or end of a load can be collected."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending_bytes > 0 or self._ended, timeout)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._loads or self._is_closed)
                if self._is_closed:
                    return
                load = self._loads.popleft()
            for index, (_, num_bytes) in enumerate(load.pages):
                if not self._wait_for_capacity(load, num_bytes):
                    break
                payload = self._read(load.pages[index:])
                if payload is None:
                    break
                with self._changed:
                    self.read_bytes += num_bytes
                    if not load._is_cancelled:
                        load._payloads.append(payload)
                        self._pending_bytes += num_bytes
                    self._changed.notify_all()
            with self._changed:
                load._is_done = True
                if not load._is_cancelled:
                    self._ended.add(load)
                self._changed.notify_all()

    def _wait_for_capacity(self, load: PageLoad, num_bytes: int) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._pending_bytes + num_bytes <= max(MAX_PENDING_BYTES, num_bytes)
                    or load._is_cancelled
                    or self._is_closed
                )
            )
            return not (load._is_cancelled or self._is_closed)

    def _read(self, pages: Sequence[tuple[bytes, int]]) -> bytearray | None:
        """Reads the first of `pages`; if it is unusable, discards all of them.

        Later pages are useless without the first. A transient error discards nothing.
        """
        self._read_started = time.monotonic()
        problem = None
        try:
            return self._store.read(*pages[0])
        except FileNotFoundError:  # another process has evicted the page
            pass
        except (CorruptPageError, OSError, MemoryError) as error:
            problem = f"cannot read a page ({error}); recomputing it"
            if isinstance(error, MemoryError) or getattr(error, "errno", None) in TRANSIENT_ERRORS:
                self._writer.warn(problem)
                return None
        finally:
            self._read_started = None
        self._writer.discard([key for key, _ in pages], problem)
        return None
