"""Week 6, day 6, optional: a prefix cache that survives a restart."""

import io
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.disk_cache.support import engine, generate_one
from tests.support import assert_equal
from tiny_llm.engine.execution.disk_tier import page_key, stored_keys
from tiny_llm.kv_storage import page_store as store_module
from tiny_llm.kv_storage.page_store import (
    HEADER_BYTES,
    KEY_BYTES,
    MAGIC,
    CorruptPageError,
    PageStore,
    page_header,
    read_page_file,
    write_page_file,
)

ROOT = bytes(KEY_BYTES)
KEY = bytes(range(KEY_BYTES))
PAYLOAD = bytes(range(256)) * 20


def key_of_prefix(*pages: list[int], root: bytes = ROOT) -> bytes:
    for token_ids in pages:
        root = page_key(root, token_ids)
    return root


def test_task_1_key_is_deterministic_and_depends_on_the_prefix():
    key = page_key(ROOT, [1, 2, 3])
    assert isinstance(key, bytes), f"expected bytes, got {type(key).__name__}"
    assert len(key) == KEY_BYTES, f"expected {KEY_BYTES} bytes, got {len(key)}"
    assert page_key(ROOT, (1, 2, 3)) == key, "expected equal keys for equal tokens"
    # KV of equal tokens depend on prefix and model, so page keys must, too.
    first, second = key_of_prefix([1, 2], [7, 8]), key_of_prefix([3, 4], [7, 8])
    assert first != second, "expected different keys for [7, 8] after [1, 2] and [3, 4]"
    model, other = page_key(b"a" * KEY_BYTES, [7, 8]), page_key(b"b" * KEY_BYTES, [7, 8])
    assert model != other, "expected different keys for another model's fingerprint, got the same"
    assert key_of_prefix([1, 2], [7, 8]) == first


@pytest.mark.parametrize(
    ("one", "other"),
    [([1, 23], [12, 3]), ([1, 2], [2, 1]), ([0, 5], [5]), ([5], [5 + 2**16]), ([255], [-1])],
    ids=str,
)
def test_task_1_different_tokens_have_different_keys(one, other):
    assert page_key(ROOT, one) != page_key(ROOT, other), (
        f"expected different keys for {one} and {other}, got the same"
    )


def test_task_1_leading_stored_pages():
    pages = [[1, 2], [3, 4], [5, 6], [7, 8]]
    keys = [key_of_prefix(*pages[:n]) for n in (1, 2, 3, 4)]
    for stored, expected in (
        (keys, 4),
        (keys[:2], 2),
        ([], 0),
        ([keys[0], keys[2], keys[3]], 1),
        (keys[1:], 0),
        ([page_key(ROOT, page) for page in pages], 1),
    ):
        found = stored_keys(ROOT, iter(pages), set(stored))
        numbers = [keys.index(key) if key in keys else "another" for key in found]
        has = [keys.index(key) if key in keys else "another" for key in stored]
        assert_equal(numbers, list(range(expected)), f"the first {expected} pages of {has}")


def test_task_2_header():
    header = page_header(KEY, PAYLOAD)
    assert len(header) == HEADER_BYTES, f"expected {HEADER_BYTES} bytes, got {len(header)}"
    assert header[:16] == MAGIC, f"expected {MAGIC!r}, got {header[:16]!r}"
    assert header[16:36] == KEY, f"expected the page key, got {header[16:36]!r}"
    length = int.from_bytes(header[36:44], "little")
    assert length == len(PAYLOAD), f"expected a length of {len(PAYLOAD)}, got {length}"
    checksum, expected = int.from_bytes(header[44:], "little"), zlib.crc32(header[:44] + PAYLOAD)
    assert_equal(checksum, expected, "the CRC-32 of magic, key, length and payload")


@pytest.mark.parametrize("num_bytes", [0, 1, 5120])
def test_task_2_file_is_header_and_payload(tmp_path, num_bytes):
    write_page_file(tmp_path / "page", KEY, memoryview(PAYLOAD)[:num_bytes])
    data, expected = (tmp_path / "page").read_bytes(), page_header(KEY, PAYLOAD[:num_bytes])
    assert_equal(len(data), HEADER_BYTES + num_bytes, "the size of header and payload")
    assert data == expected + PAYLOAD[:num_bytes], "expected the header followed by the payload"


def test_task_2_whole_file_is_synced(tmp_path, monkeypatch):
    sizes = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (sizes.append(os.fstat(fd).st_size), sync(fd)))
    write_page_file(tmp_path / "page", KEY, PAYLOAD)
    whole = HEADER_BYTES + len(PAYLOAD)
    assert sizes, "expected os.fsync before the function returns, got none"
    assert sizes[-1] == whole, f"expected {whole} bytes in the file at os.fsync, got {sizes[-1]}"


class ShortWrites(io.FileIO):
    """A raw file that writes at most 1,000 bytes per call, as an OS may do."""

    def write(self, data: Any) -> int:
        return super().write(memoryview(data)[:1000])


def test_task_2_short_writes_are_continued(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, mode, *_, **__: ShortWrites(path, mode))
        write_page_file(tmp_path / "page", KEY, PAYLOAD)
    size, whole = (tmp_path / "page").stat().st_size, HEADER_BYTES + len(PAYLOAD)
    assert size == whole, f"expected {whole} bytes after short writes, got {size}"


def test_task_3_round_trip(tmp_path):
    for num_bytes in (0, 1, 5120):
        path = tmp_path / str(num_bytes)
        path.write_bytes(page_header(KEY, PAYLOAD[:num_bytes]) + PAYLOAD[:num_bytes])
        payload = read_page_file(path, KEY, num_bytes)
        assert payload == PAYLOAD[:num_bytes], f"expected {num_bytes} bytes, got {len(payload)}"


def flip_bit(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


WHOLE = HEADER_BYTES + len(PAYLOAD)
CORRUPTIONS: dict[str, Callable[[bytes], bytes]] = {
    "bit flip in the payload": lambda data: flip_bit(data, HEADER_BYTES + 777),
    "bit flip in the last byte": lambda data: flip_bit(data, WHOLE - 1),
    "bit flip in the magic": lambda data: flip_bit(data, 3),
    "bit flip in the key": lambda data: flip_bit(data, 20),
    "bit flip in the length": lambda data: flip_bit(data, 40),
    "bit flip in the checksum": lambda data: flip_bit(data, 45),
    "last byte missing": lambda data: data[:-1],
    "empty file": lambda data: b"",
    "extra byte": lambda data: data + b"x",
    "zeros": lambda data: bytes(len(data)),
    # A renamed file has a valid checksum, but the wrong page key.
    "another page's file": lambda data: page_header(bytes(reversed(KEY)), PAYLOAD) + PAYLOAD,
}


@pytest.mark.parametrize("what", CORRUPTIONS)
def test_task_3_corruption_is_detected(tmp_path, what):
    path = tmp_path / "page"
    path.write_bytes(CORRUPTIONS[what](page_header(KEY, PAYLOAD) + PAYLOAD))
    try:
        payload = read_page_file(path, KEY, len(PAYLOAD))
    except CorruptPageError:
        return
    pytest.fail(f"{what}: expected CorruptPageError, got a payload of {len(payload)} bytes")


class KilledError(BaseException):
    """Simulated kill, which `except Exception` does not catch."""


class CrashingDisk:
    """Simulates a kill before the nth disk operation, followed by a power loss.

    Operations are `os.fsync`, `os.replace` and `os.rename`. Files that were not synced lose their
    contents.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, survives: int):
        self.log: list[str] = []
        self._directory, self._survives = directory, survives
        self._synced: set[int] = set()
        for name in ("fsync", "replace", "rename"):
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if len(self.log) == self._survives:
                raise KilledError
            self.log.append(name)
            if name == "fsync":
                self._synced.add(os.fstat(args[0]).st_ino)
            return function(*args, **options)

        return call

    def lose_power(self) -> None:
        for folder in ("pages", "writing"):
            for path in (self._directory / folder).rglob("*"):
                if path.is_file() and path.stat().st_ino not in self._synced:
                    os.truncate(path, 0)


PAGES = {n: (bytes([n]) * KEY_BYTES, bytes([n]) * 3000) for n in (1, 2, 3)}


def open_store(directory: Path) -> PageStore:
    return PageStore(directory, 10**6)


def write_pages(store: PageStore) -> int:
    return sum(store.write(key, payload, n) for n, (key, payload) in PAGES.items())


def assert_pages_are_intact(directory: Path, where: str) -> int:
    """Asserts that all pages in the store are intact; returns their number."""
    store = open_store(directory)
    present = [n for n, (key, _) in PAGES.items() if key in store]
    for n in present:
        key, expected = PAGES[n]
        try:
            payload = store.read(key, len(expected))
        except CorruptPageError as error:
            pytest.fail(f"{where}: expected page {n} to be intact, got: {error}")
        assert payload == expected, f"{where}: expected the payload of page {n}"
    return len(present)


def test_task_4_pages_are_stored(tmp_path):
    store = open_store(tmp_path)
    size = write_pages(store)
    assert size == store.num_bytes > 9000, f"expected all three pages, got {store.num_bytes} bytes"
    left = [path.name for path in (tmp_path / "writing").iterdir()]
    assert not left, f"expected no files left in writing/, got {left}"
    count = assert_pages_are_intact(tmp_path, "after the writes")
    assert count == 3, f"expected three pages in the store, got {count}"


def test_task_4_crash_at_any_operation(tmp_path, monkeypatch):
    """Stored pages are intact, and the next process can write the missing ones."""
    for survives in range(100):
        directory = tmp_path / str(survives)
        with monkeypatch.context() as patch:
            disk, was_killed = CrashingDisk(patch, directory, survives), False
            try:
                write_pages(open_store(directory))
            except KilledError:
                was_killed = True
            disk.lose_power()
        where = f"killed after {', '.join(disk.log) or 'no operation'}"
        assert_pages_are_intact(directory, where)
        try:
            write_pages(open_store(directory))
        except OSError as error:
            pytest.fail(f"{where}: expected the next process to write the pages, got {error!r}")
        count = assert_pages_are_intact(directory, f"{where}, then rewritten")
        assert count == 3, f"{where}: expected three pages after a rewrite, got {count}"
        if not was_killed:
            break
    assert disk.log.count("fsync") == 3, f"expected an fsync per file, got {disk.log}"


def test_task_4_readers_never_see_partial_files(tmp_path, monkeypatch):
    store, seen = open_store(tmp_path), []

    def write(path: Path, key: bytes, payload: bytes) -> None:
        seen.append(store.path(key).exists() or path == store.path(key))
        write_page_file(path, key, payload)

    monkeypatch.setattr(store_module, "write_page_file", write)
    write_pages(store)
    assert_equal(seen, [False] * 3, "no file under the page's name during the write")


def test_task_4_full_disk_leaves_no_files_behind(tmp_path, monkeypatch):
    def write(path: Path, key: bytes, payload: bytes) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    store = open_store(tmp_path)
    monkeypatch.setattr(store_module, "write_page_file", write)
    with pytest.raises(OSError, match="No space left"):
        write_pages(store)
    left = [path.name[-6:] for path in (tmp_path / "writing").iterdir()]
    assert not left, f"expected the temporary file to be deleted, got {left}"
    assert_equal(assert_pages_are_intact(tmp_path, "after a full disk"), 0, "no pages in the store")


def test_task_4_cache_survives_a_restart(tmp_path, demo):
    write_pages(open_store(tmp_path / "pages alone"))
    with engine(tmp_path, demo) as llm:
        first = generate_one(llm)
        assert first.num_cached_tokens == 0
    with engine(tmp_path, demo) as llm:
        second = generate_one(llm)
        read = llm.disk_cache.stats.hit_tokens
    pages = (len(first.prompt_token_ids) - 1) // 32
    assert read == pages * 32, f"expected {pages} pages of 32 tokens from disk, got {read} tokens"
    assert second.num_cached_tokens == read, f"expected {read}, got {second.num_cached_tokens}"
    assert_equal(second.token_ids, first.token_ids, "the first engine's output")
