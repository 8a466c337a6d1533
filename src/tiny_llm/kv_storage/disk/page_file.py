"""Page files: a header with key, length and checksum, then the page's bytes.

    magic     16 bytes
    key       20 bytes
    length    8 bytes, payload size
    CRC-32    4 bytes, over magic, key, length and payload
    payload   the page's bytes

Verification rejects files that were truncated, damaged, renamed or written by another program.
"""

import os
import stat
import struct
import zlib
from io import FileIO
from pathlib import Path

Buffer = bytes | bytearray | memoryview

KEY_BYTES = 20
MAGIC = b"tiny-llm KV 1\n\0\0"
_PREFIX = struct.Struct(f"<16s{KEY_BYTES}sQ")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _PREFIX.size + _CHECKSUM.size


class CorruptPageError(Exception):
    """Raised when a page file fails verification."""


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


def read_page_file(path: Path, key: bytes, num_bytes: int) -> bytearray:
    """Reads and verifies a page of `num_bytes` bytes.

    Raises:
        FileNotFoundError: the file does not exist.
        CorruptPageError: the file fails verification.
        OSError: the file cannot be read.
    """
    with open(path, "rb", buffering=0, opener=_open_without_blocking) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise CorruptPageError(f"{path} is not a regular file")
        # [task 6.6.3 verify]
        if status.st_size != HEADER_BYTES + num_bytes:
            raise CorruptPageError(f"{path} has the wrong size")
        header, payload = _read_exactly(file, HEADER_BYTES), _read_exactly(file, num_bytes)
        if header != page_header(key, payload):
            raise CorruptPageError(f"{path} is damaged or belongs to another page")
        return payload
        # [/task 6.6.3 verify]


def drop_from_page_cache(path: Path) -> None:
    """Asks the OS to drop a file from its page cache, so the next read hits disk."""
    if hasattr(os, "posix_fadvise"):  # macOS does not have it
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _open_without_blocking(path: str, flags: int) -> int:
    # Opening a named pipe would block. O_NONBLOCK does not exist on Windows.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read_exactly(file: FileIO, num_bytes: int) -> bytearray:
    data = bytearray(num_bytes)
    rest = memoryview(data)
    while rest:
        count = file.readinto(rest)
        if not count:
            raise CorruptPageError(f"{file.name!s} is truncated")
        rest = rest[count:]
    return data
