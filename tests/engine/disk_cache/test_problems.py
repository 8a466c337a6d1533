"""Damaged files, full and read-only disks, foreign files: misses and one warning."""

import errno
import logging
import os
import random
import resource
import shutil
from unittest import mock

import pytest

from tests.engine.disk_cache.support import GREEDY, PROMPT, ask, engine, page_files, wait_until
from tiny_llm import LLM
from tiny_llm.kv_cache.disk import page_file, reader, store, writer

LOGGER = "tiny_llm.engine"


def truncate(path, files, draw):
    os.truncate(path, draw.randrange(path.stat().st_size))


def flip_bit(path, files, draw):
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def overwrite_block(path, files, draw):
    data = bytearray(path.read_bytes())
    start = draw.randrange(len(data))
    data[start : start + 4096] = draw.randbytes(len(data[start : start + 4096]))
    path.write_bytes(data)


def zero_tail(path, files, draw):
    """Simulates a power failure: the right size, but the last blocks were never written."""
    data = bytearray(path.read_bytes())
    start = draw.randrange(len(data))
    data[start:] = bytes(len(data) - start)
    path.write_bytes(data + bytes(0))


def swap(path, files, draw):
    other = draw.choice([file for file in files if file != path])
    first, second = path.read_bytes(), other.read_bytes()
    path.write_bytes(second)
    other.write_bytes(first)


def replace_by_foreign_file(path, files, draw):
    path.write_bytes(draw.choice([b"", b"hello\n", draw.randbytes(path.stat().st_size)]))


def append(path, files, draw):
    path.write_bytes(path.read_bytes() + b"x")


def delete(path, files, draw):
    path.unlink()


def replace_by_pipe(path, files, draw):
    path.unlink()
    os.mkfifo(path)


DAMAGES = [
    truncate,
    flip_bit,
    overwrite_block,
    zero_tail,
    swap,
    replace_by_foreign_file,
    append,
    delete,
    replace_by_pipe,
]


def damage(files, draw, share):
    """Damages a random share of the files; returns the number of chosen files."""
    chosen = [path for path in files if draw.random() < share]
    for path in chosen:
        if path.is_file() and path.stat().st_size > 0:
            draw.choice(DAMAGES)(path, [file for file in files if file.is_file()], draw)
    return len(chosen)


def test_no_wrong_token_with_damaged_files(tmp_path, demo, exhaustive):
    expected = ask(LLM(demo, enable_prefix_caching=False))
    draw, num_damaged, hits = random.Random(3), 0, 0
    with engine(tmp_path, demo, block_size=8) as llm:
        ask(llm)
        cache = llm.core.disk_cache
        while num_damaged < (1000 if exhaustive else 60):
            cache.store_new()
            assert cache._writer.flush(30)
            num_damaged += damage(page_files(tmp_path), draw, draw.choice([0.02, 0.1, 1.0]))
            llm.scheduler.pages.cache.evict(10**9)
            output = ask(llm)
            assert output.token_ids == expected.token_ids
            assert output.logprobs == expected.logprobs
            hits += output.num_cached_tokens
        assert cache.stats.num_errors > 0
    print(f"{num_damaged} damaged files, {hits} tokens from disk")
    assert hits > 0


def test_damaged_pages_are_written_again_and_warned_of_once(tmp_path, demo, caplog):
    with engine(tmp_path, demo) as llm:
        ask(llm)
    files = page_files(tmp_path)
    for path in files:
        flip_bit(path, files, random.Random(4))
    with caplog.at_level(logging.WARNING, LOGGER), engine(tmp_path, demo) as llm:
        assert ask(llm).num_cached_tokens == 0
        llm.scheduler.pages.cache.evict(10**9)
        ask(llm, f"Other. {PROMPT}")
    [record] = caplog.records
    assert "cannot read" in record.message
    with engine(tmp_path, demo) as llm:
        assert ask(llm).num_cached_tokens > 0
        assert llm.core.disk_cache.stats.num_errors == 0


def test_a_full_disk(tmp_path, demo, caplog):
    """A write fails halfway; later writes are retried."""
    real, limit = os.fsync, [3]

    def fail(descriptor):
        limit[0] -= 1
        if limit[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with (
        caplog.at_level(logging.WARNING, LOGGER),
        mock.patch.object(writer, "RETRY_SECONDS", 0.0),
        mock.patch.object(writer, "MAX_BATCH", 2),
        engine(tmp_path, demo) as llm,
    ):
        with mock.patch.object(page_file.os, "fsync", fail):
            limit[0] = 3
            expected = ask(llm)
            assert llm.core.disk_cache._writer.flush(30)
        other = ask(llm, f"Other. {PROMPT}")
        assert llm.core.disk_cache._writer.flush(30)
    [record] = caplog.records
    assert "No space left" in record.message
    assert list((tmp_path / "writing").iterdir()) == []
    with engine(tmp_path, demo) as llm:
        assert ask(llm).token_ids == expected.token_ids
        again = ask(llm, f"Other. {PROMPT}")
        assert again.token_ids == other.token_ids
        assert again.num_cached_tokens > 0


def test_a_file_size_limit(tmp_path):
    """RLIMIT_FSIZE: Python ignores SIGXFSZ, so writes fail midway with EFBIG."""
    pages = store.PageStore(tmp_path, 10**9, b"model")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            pages.write([store.StoredPage(bytes(20), 0, bytes(200_000))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert bytes(20) not in pages
    assert list((tmp_path / "writing").iterdir()) == []
    assert pages.write([store.StoredPage(bytes(20), 0, bytes(200_000))]) > 200_000
    assert pages.read(bytes(20), 200_000) == bytes(200_000)


def test_a_read_only_directory(tmp_path, demo, caplog):
    """The superuser can write anywhere, so the test injects the error."""
    with (
        caplog.at_level(logging.WARNING, LOGGER),
        mock.patch.object(store.Path, "mkdir", side_effect=PermissionError(13, "read-only")),
        engine(tmp_path / "new", demo) as llm,
    ):
        assert llm.core.disk_cache is None
        ask(llm)
    [record] = caplog.records
    assert "cannot use" in record.message


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser can write anywhere")
def test_a_directory_without_write_permission(tmp_path, demo, caplog):
    tmp_path.chmod(0o500)
    with caplog.at_level(logging.WARNING, LOGGER), engine(tmp_path, demo) as llm:
        ask(llm)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("contents", [b"not a database" * 100, b"SQLite format 3\0" + bytes(500)])
def test_a_foreign_or_damaged_index(tmp_path, demo, caplog, contents):
    with engine(tmp_path, demo) as llm:
        expected = ask(llm)
    (tmp_path / "index.sqlite").write_bytes(contents)
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"index.sqlite{suffix}").unlink(missing_ok=True)
    with caplog.at_level(logging.WARNING, LOGGER), engine(tmp_path, demo) as llm:
        output = ask(llm)
    assert output.token_ids == expected.token_ids
    [record] = caplog.records
    assert "cannot use" in record.message
    assert (tmp_path / "index.sqlite").read_bytes() == contents  # perhaps not our file


def test_an_index_damaged_while_open(tmp_path, demo, caplog):
    with caplog.at_level(logging.WARNING, LOGGER), engine(tmp_path, demo) as llm:
        ask(llm)
        assert llm.core.disk_cache._writer.flush(30)
        error = store.sqlite3.DatabaseError("malformed")
        with mock.patch.object(store.PageIndex, "contains", side_effect=error):
            ask(llm, f"Other. {PROMPT}")
            assert llm.core.disk_cache._writer.flush(30)
        assert ask(llm).num_cached_tokens > 0
    assert len(caplog.records) == 1


def test_the_directory_disappears(tmp_path, demo, caplog):
    directory = tmp_path / "cache"
    with caplog.at_level(logging.WARNING, LOGGER), engine(directory, demo) as llm:
        expected = ask(llm)
        assert llm.core.disk_cache._writer.flush(30)
        shutil.rmtree(directory)
        llm.scheduler.pages.cache.evict(10**9)
        assert ask(llm).token_ids == expected.token_ids
        ask(llm, f"Other. {PROMPT}")
    assert len(caplog.records) == 1


def test_a_disk_that_does_not_respond(tmp_path, demo):
    with engine(tmp_path, demo) as llm:
        expected = ask(llm)
    with engine(tmp_path, demo) as llm, mock.patch.object(reader, "STALL_SECONDS", 0.05):
        cache = llm.core.disk_cache
        release, read = reader.threading.Event(), cache._store.read
        cache._store.read = lambda *args: (release.wait(30), read(*args))[1]
        assert ask(llm).token_ids == expected.token_ids
        assert ask(llm, f"Other. {PROMPT}").num_cached_tokens == 0
        assert cache.stats.hit_tokens == 0
        release.set()


def test_the_writer_cannot_keep_up(tmp_path, demo):
    """Pages stay in memory until the write queue has room."""
    with mock.patch.object(writer, "MAX_QUEUED_BYTES", 300_000), engine(tmp_path, demo) as llm:
        ask(llm)
    with engine(tmp_path, demo) as llm:
        assert ask(llm).num_cached_tokens > 300_000 // 8192


def test_pages_are_written_and_reported_while_idle(tmp_path, demo):
    """Pages that the write queue had no room for are queued by the checks of an idle server."""
    with engine(tmp_path, demo) as llm:
        cache, reports = llm.core.disk_cache, []
        with mock.patch.object(cache._writer, "has_room", return_value=False):
            ask(llm)
        num_pages = len(cache._new_pages)
        assert num_pages > 0

        def check() -> bool:
            llm.core._next_memory_check = 0
            reports.append(llm.check_memory())
            return reports[-2:] == [True, False] and len(page_files(tmp_path)) == num_pages

        wait_until(check)


def test_serving_continues_after_close(demo, tmp_path):
    with engine(tmp_path, demo) as llm:
        expected = ask(llm)
        llm.add_request(f"Other. {PROMPT}", GREEDY)
        llm.step()
        llm.close()
        while llm.has_unfinished_requests:
            llm.step()
        assert ask(llm).token_ids == expected.token_ids
