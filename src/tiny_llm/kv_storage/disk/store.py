"""PageStore: a size-bounded directory of page files.

    DIR/pages.sqlite         the index
    DIR/pages/3f/3f…         a page file, named after its key
    DIR/writing/RANDOM-KEY   a page file being written

A page is written and synced under a temporary name, renamed, then indexed, so indexed pages are
complete. A page's key is a hash of everything that determines the page's bytes, so pages written by
different processes are interchangeable, and no page is ever overwritten with different bytes.

Pages reveal prompts and decide answers, so other users can neither read nor write the directory.
"""

import errno
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .index import PageIndex
from .page_file import (
    HEADER_BYTES,
    KEY_BYTES,
    Buffer,
    drop_from_page_cache,
    read_page_file,
    write_page_file,
)

STORE_ERRORS = (OSError, sqlite3.Error)

ENTRY_BYTES = 512  # size of an index entry, rounded up; counts toward a page's size
MIN_FREE = 0.05  # fraction of the disk that pages leave free
ORPHAN_SECONDS = 600.0  # unindexed files older than this are orphans
NUM_PROBE_FILES = 4  # page files that `read_seconds` reads


@dataclass(frozen=True)
class StoredPage:
    key: bytes
    depth: int  # number of preceding pages in the prefix
    payload: Buffer

    @property
    def stored_bytes(self) -> int:
        return stored_bytes(len(self.payload))


def stored_bytes(num_bytes: int) -> int:
    return num_bytes + HEADER_BYTES + ENTRY_BYTES


class PageStore:
    """Key-value store of pages.

    Any thread may use `in`, `read` and `invalidate`; only one thread may use the other methods.

    Args:
        directory: created if missing, for this user only.
        max_bytes: upper bound on the total size; the least recently used pages are evicted.
        model: fingerprint of this process's model.

    Attributes:
        num_bytes: total size of the pages of all models and processes, as of the last update.

    Raises:
        OSError, sqlite3.Error: the directory is unusable.
    """

    def __init__(self, directory: Path, max_bytes: int, model: bytes):
        directory = directory.absolute()  # the working directory may change
        self._pages, self._writing = directory / "pages", directory / "writing"
        self._max_bytes = max_bytes
        self._prefix = secrets.token_hex(8)  # containers that share a directory may share a PID
        directory.parent.mkdir(parents=True, exist_ok=True)
        for folder in (directory, self._pages, self._writing):
            folder.mkdir(mode=0o700, exist_ok=True)
            _check_private(folder)
        for folder in (self._pages, self._writing):
            folder.chmod(0o700)
        self._index = PageIndex(directory / "pages.sqlite", model)
        self._keys = set(self._index.new_keys())
        self.num_bytes = self._index.num_bytes

    def __contains__(self, key: object) -> bool:
        """Whether `key` was indexed at the last refresh; its page may be gone by now."""
        return key in self._keys

    def path(self, key: bytes) -> Path:
        name = key.hex()
        return self._pages / name[:2] / name

    def read(self, key: bytes, num_bytes: int) -> bytearray:
        return read_page_file(self.path(key), key, num_bytes)

    def write(self, pages: Sequence[StoredPage]) -> int:
        """Writes pages not yet stored, as many as fit; returns their total size.

        Less recently used pages are evicted to stay within `max_bytes`, and to leave `MIN_FREE` of
        the disk free.
        """
        new: dict[bytes, StoredPage] = {}
        total, disk = 0, shutil.disk_usage(self._pages)
        allowed = self._index.num_bytes + disk.free - int(MIN_FREE * disk.total)
        max_bytes = max(0, min(self._max_bytes, allowed))
        for page in pages:
            is_missing = page.key not in new and not self._index.contains(page.key)
            if is_missing and total + page.stored_bytes <= max_bytes:
                new[page.key] = page
                total += page.stored_bytes
        self._delete_files(self._index.evict(max_bytes - total))
        if new:
            self._publish(list(new.values()))
        return total

    def _publish(self, pages: Sequence[StoredPage]) -> None:
        """Writes temporary files, renames them, then adds the pages to the index.

        Raises:
            OSError: a file cannot be written; the temporary files have been deleted.
        """
        # [task 6.6.4 publish]
        try:
            for page in pages:
                write_page_file(self._temporary_path(page.key), page.key, page.payload)
            for page in pages:
                target = self.path(page.key)
                target.parent.mkdir(exist_ok=True)
                self._temporary_path(page.key).replace(target)
        except OSError:
            for page in pages:
                with suppress(OSError):
                    self._temporary_path(page.key).unlink(missing_ok=True)
            raise
        self._add_to_index(pages)
        # [/task 6.6.4 publish]

    def _temporary_path(self, key: bytes) -> Path:
        return self._writing / f"{self._prefix}-{key.hex()}"

    def _add_to_index(self, pages: Sequence[StoredPage]) -> None:
        entries = [(page.key, page.stored_bytes, page.depth) for page in pages]
        self._delete_files(self._index.add(entries, self._max_bytes))
        self.refresh()

    def invalidate(self, keys: Sequence[bytes]) -> None:
        """Makes `key in store` False for these pages, without deleting their files."""
        self._keys.difference_update(keys)

    def refresh(self) -> None:
        self._keys.update(self._index.new_keys())
        self.num_bytes = self._index.num_bytes

    def touch(self, keys: Collection[bytes]) -> None:
        self._index.touch(keys)

    def delete(self, keys: Sequence[bytes]) -> None:
        self._index.remove(keys)
        self._delete_files(keys)
        self.num_bytes = self._index.num_bytes

    def _delete_files(self, keys: Sequence[bytes]) -> None:
        self._keys.difference_update(keys)
        for key in keys:
            with suppress(OSError):
                self.path(key).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Deletes partially written or unindexed files left by killed processes."""
        for path in self._writing.iterdir():
            if _is_old(path):
                with suppress(OSError):
                    path.unlink(missing_ok=True)
        for path in self._pages.glob("*/*"):
            is_page = len(path.name) == 2 * KEY_BYTES and set(path.name) <= set("0123456789abcdef")
            if is_page and _is_old(path) and not self._index.contains(bytes.fromhex(path.name)):
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def read_seconds(self, num_bytes: int) -> float:
        """Measures the least seconds to read a page that the OS has not cached.

        0 on a full disk: its pages are read nevertheless.
        """
        payload, seconds = os.urandom(num_bytes), []
        path = self._writing / f"{self._prefix}-probe"
        for _ in range(NUM_PROBE_FILES):
            try:
                write_page_file(path, bytes(KEY_BYTES), payload)
                drop_from_page_cache(path)
                started = time.perf_counter()
                read_page_file(path, bytes(KEY_BYTES), num_bytes)
                seconds.append(time.perf_counter() - started)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                return 0.0
            finally:
                path.unlink(missing_ok=True)
        return min(seconds)  # another program may slow a read

    def close(self) -> None:
        self._index.close()


def _check_private(folder: Path) -> None:
    status = folder.stat()
    if os.name != "nt" and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
        raise PermissionError(
            f"other users own or may write {folder}; choose a new directory, or delete it"
        )


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > ORPHAN_SECONDS
    except OSError:
        return False
