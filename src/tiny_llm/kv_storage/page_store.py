"""PageStore: a size-bounded directory of page files.

    DIR/pages/3f/3f…         a page file, named after its key
    DIR/writing/RANDOM-KEY   a page file being written

A page file is a header, then the page's bytes. Its verification rejects files that were truncated,
damaged, renamed or written by another program:

    magic     16 bytes
    key       20 bytes
    length    8 bytes, payload size
    CRC-32    4 bytes, over magic, key, length and payload
    payload   the page's bytes

A page is written and synced under a temporary name, then renamed, so files in `pages` are complete.
A page's key is a hash of everything that determines the page's bytes, so pages written by different
processes are interchangeable, and no page is ever overwritten with different bytes.

The directory is its own index: a file's modification time is the time of the page's last use.
Pages reveal prompts and decide answers, so other users can neither read nor write the directory.
"""

import errno
import os
import re
import secrets
import shutil
import stat
import struct
import time
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

Buffer = bytes | bytearray | memoryview

KEY_BYTES = 20
MAGIC = b"tiny-llm KV 1\n\0\0"
_PREFIX = struct.Struct(f"<16s{KEY_BYTES}sQ")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _PREFIX.size + _CHECKSUM.size


class CorruptPageError(OSError):
    """A page file fails verification."""


def page_header(key: bytes, payload: Buffer) -> bytes:
    """Returns the header of a page file: magic, key, length, CRC-32."""
    # [task 6.6.2 header]
    prefix = _PREFIX.pack(MAGIC, key, len(payload))
    return prefix + _CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(prefix)))
    # [/task 6.6.2 header]


def write_page_file(path: Path, key: bytes, payload: Buffer) -> None:
    """Writes a new file that only this user may read, and syncs it to disk.

    Raises:
        OSError: the file already exists, or cannot be written.
    """
    with path.open("xb", buffering=0) as file:
        path.chmod(0o600)
        # [task 6.6.2 write]
        for part in (page_header(key, payload), payload):
            rest = memoryview(part)
            while rest:  # a raw write may be partial
                rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
        # [/task 6.6.2 write]


def read_page_file(path: Path, key: bytes, num_bytes: int) -> bytes:
    """Reads and verifies a page of `num_bytes` bytes.

    Raises:
        FileNotFoundError: the file does not exist.
        CorruptPageError: the file fails verification.
        OSError: the file cannot be read.
    """
    # Opening a named pipe would block without O_NONBLOCK.
    with open(path, "rb", opener=lambda p, f: os.open(p, f | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise CorruptPageError(f"{path} is not a regular file")
        # [task 6.6.3 verify]
        if status.st_size != HEADER_BYTES + num_bytes:
            raise CorruptPageError(f"{path} has the wrong size")
        header, payload = file.read(HEADER_BYTES), file.read(num_bytes)
        if header != page_header(key, payload):
            raise CorruptPageError(f"{path} is damaged or belongs to another page")
        return payload
        # [/task 6.6.3 verify]


def drop_from_page_cache(path: Path) -> None:
    """Asks the OS to drop a file from its page cache, so the next read hits disk."""
    if hasattr(os, "posix_fadvise"):  # macOS does not have it
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


PAGE_NAME = re.compile(f"[0-9a-f]{{{2 * KEY_BYTES}}}")
GONE = 0
MIN_FREE = 0.05  # fraction of the disk that pages leave free
ORPHAN_SECONDS = 600.0  # partially written files older than this are deleted
SETTLED_NS = 2 * 10**9  # a folder changed within this time may change again in the same clock tick
NUM_PROBE_FILES = 4  # page files that `read_seconds` reads
# Offset of the time of last use per preceding page: a page is useless without its predecessors, so
# it is evicted before them.
DEPTH_NS = 10**8


def last_used_ns(depth: int) -> int:
    """Returns the time of last use, in ns, of a page used now with `depth` preceding pages."""
    return time.time_ns() - depth * DEPTH_NS


class PageStore:
    """Key-value store of pages.

    Any thread may use `in` and `read`; only one thread may use the other methods.

    Args:
        directory: created if missing, for this user only.
        max_bytes: upper bound on the total size; the least recently used pages are evicted.

    Attributes:
        num_bytes: total size of the indexed pages; `refresh` adds those of other processes.

    Raises:
        OSError: the directory is unusable.
    """

    def __init__(self, directory: Path, max_bytes: int):
        directory = directory.absolute()  # the working directory may change
        self.num_bytes = 0
        self._pages, self._writing = directory / "pages", directory / "writing"
        self._max_bytes = max_bytes
        self._prefix = secrets.token_hex(8)  # containers that share a directory may share a PID
        self._sizes: dict[bytes, int] = {}
        self._scanned: dict[str, int] = {}  # modification times of the folders in `pages`
        self._oldest: list[tuple[int, bytes]] = []  # last use and key, most recently used first
        directory.parent.mkdir(parents=True, exist_ok=True)
        for folder in (directory, self._pages, self._writing):
            folder.mkdir(mode=0o700, exist_ok=True)
            _check_private(folder)
        for folder in (self._pages, self._writing):
            folder.chmod(0o700)
        for path in self._writing.iterdir():  # left by killed processes
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > ORPHAN_SECONDS:
                    path.unlink()
        self.refresh()

    def __contains__(self, key: object) -> bool:
        """Whether `key` was stored at the last refresh; its page may be gone by now."""
        return key in self._sizes

    def path(self, key: bytes) -> Path:
        name = key.hex()
        return self._pages / name[:2] / name

    def read(self, key: bytes, num_bytes: int) -> bytes:
        return read_page_file(self.path(key), key, num_bytes)

    def write(self, key: bytes, payload: Buffer, depth: int) -> int:
        """Writes a page unless it is stored or does not fit; returns its file's size, or 0.

        Less recently used pages are evicted to stay within `max_bytes`, and to leave `MIN_FREE` of
        the disk free.

        Args:
            depth: number of preceding pages in the prefix.
        """
        size = HEADER_BYTES + len(payload)
        if key in self or size > self._max_bytes:
            return 0
        disk = shutil.disk_usage(self._pages)
        allowed = self.num_bytes + disk.free - int(MIN_FREE * disk.total)
        max_bytes = min(self._max_bytes, allowed) - size
        self._evict(max(0, max_bytes))
        if max_bytes < 0:
            return 0
        self._publish(key, payload)
        self._add(key, size)
        self.touch({key: last_used_ns(depth)})
        return size

    def _publish(self, key: bytes, payload: Buffer) -> None:
        """Writes a page's file under a temporary name, then renames it.

        Raises:
            OSError: the file cannot be written; the temporary file has been deleted.
        """
        temporary, target = self._temporary_path(key), self.path(key)
        # [task 6.6.4 publish]
        try:
            write_page_file(temporary, key, payload)
            target.parent.mkdir(exist_ok=True)
            temporary.replace(target)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        # [/task 6.6.4 publish]

    def _temporary_path(self, key: bytes) -> Path:
        return self._writing / f"{self._prefix}-{key.hex()}"

    def touch(self, used: Mapping[bytes, int]) -> None:
        """Sets pages' times of last use, in ns."""
        for key, time_ns in used.items():
            with suppress(FileNotFoundError):
                os.utime(self.path(key), ns=(time_ns, time_ns))

    def delete(self, keys: Iterable[bytes]) -> None:
        """Deletes pages; after an OSError, the remaining ones are still stored."""
        for key in keys:
            self.path(key).unlink(missing_ok=True)
            self.num_bytes -= self._sizes.pop(key, 0)

    def refresh(self) -> None:
        """Adds pages that other processes have written; evicts to stay within `max_bytes`."""
        for folder in os.scandir(self._pages):
            if folder.is_dir(follow_symlinks=False):
                self._scan(folder)
        self._evict(self._max_bytes)

    def _scan(self, folder: os.DirEntry[str]) -> None:
        changed_ns = folder.stat().st_mtime_ns
        if self._scanned.get(folder.name) == changed_ns:
            return
        is_settled = time.time_ns() - changed_ns > SETTLED_NS
        for file in os.scandir(folder):
            if PAGE_NAME.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                key = bytes.fromhex(file.name)
                if key not in self._sizes:
                    with suppress(FileNotFoundError):  # another process has evicted it
                        self._add(key, file.stat().st_size)
        if is_settled:
            self._scanned[folder.name] = changed_ns

    def _add(self, key: bytes, size: int) -> None:
        self._sizes[key] = size
        self.num_bytes += size

    def _evict(self, max_bytes: int) -> None:
        """Deletes the least recently used pages until at most `max_bytes` remain.

        Pages are sorted by last use once, and again when all have been considered. Those used in
        between, possibly by another process, are skipped.
        """
        while self.num_bytes > max_bytes:
            if not self._oldest:
                self._oldest = sorted(((self._last_used(k), k) for k in self._sizes), reverse=True)
            last_used, key = self._oldest.pop()
            if self._last_used(key) in (last_used, GONE):
                self.delete([key])

    def _last_used(self, key: bytes) -> int:
        """Returns the time of last use in ns; `GONE` if another process has evicted the page."""
        try:
            return self.path(key).stat().st_mtime_ns
        except FileNotFoundError:
            return GONE

    def read_seconds(self, num_bytes: int) -> float:
        """Measures the minimum time to read a page that is not in the OS's page cache.

        Returns 0 on a full disk, from which pages can still be read.
        """
        key, payload, seconds = bytes(KEY_BYTES), os.urandom(num_bytes), []
        path = self._temporary_path(key)
        for _ in range(NUM_PROBE_FILES):
            try:
                write_page_file(path, key, payload)
                drop_from_page_cache(path)
                started = time.perf_counter()
                read_page_file(path, key, num_bytes)
                seconds.append(time.perf_counter() - started)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                return 0.0
            finally:
                path.unlink(missing_ok=True)
        return min(seconds)  # another program may slow a read


def _check_private(folder: Path) -> None:
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(
            f"other users own or may write {folder}; choose another directory, or delete this one"
        )
