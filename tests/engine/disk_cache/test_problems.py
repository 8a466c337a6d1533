"""Corrupt or foreign files, full or read-only disks: misses and one warning."""

import errno
import itertools
import logging
import os
import shutil
from unittest import mock

import pytest

from tests.engine.disk_cache.support import (
    GREEDY,
    PROMPT,
    engine,
    generate_one,
    open_llm,
    page_files,
    wait_until,
)
from tests.engine.support import finish
from tiny_llm import UserError
from tiny_llm.kv_storage import io_thread
from tiny_llm.kv_storage import page_store as store

LOGGER = "tiny_llm.engine"


@pytest.mark.parametrize("how", ["flip a bit", "replace by pipe"])
def test_corrupt_pages_are_rewritten_with_one_warning(tmp_path, demo, caplog, stored, how):
    with caplog.at_level(logging.WARNING, LOGGER), engine(tmp_path, demo) as llm:
        wait_until(lambda: len(llm.disk_cache._store._sizes) == len(page_files(tmp_path)))
        for path in page_files(tmp_path):
            data = bytearray(path.read_bytes())
            data[len(data) // 3] ^= 4
            path.write_bytes(data)
            if how == "replace by pipe":
                path.unlink()
                os.mkfifo(path)
        output = generate_one(llm)
        assert output.num_cached_tokens == 0
        assert (output.token_ids, output.logprobs) == (stored.token_ids, stored.logprobs)
        llm.scheduler.pages.cache.evict(10**9)
        generate_one(llm, f"Other. {PROMPT}")
    [record] = caplog.records
    assert "cannot read" in record.message
    with engine(tmp_path, demo) as llm:
        assert generate_one(llm).num_cached_tokens > 0
        assert llm.disk_cache.stats.num_errors == 0


def test_full_disk(tmp_path, demo, caplog):
    """A write fails midway; later writes succeed."""
    sync, calls = os.fsync, itertools.count()

    def fail(descriptor):
        if next(calls) >= 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with (
        caplog.at_level(logging.WARNING, LOGGER),
        mock.patch.object(io_thread, "RETRY_SECONDS", 0.0),
        engine(tmp_path, demo) as llm,
    ):
        with mock.patch.object(store.os, "fsync", fail):
            expected = generate_one(llm)
            assert llm.disk_cache._io.flush(30)
        other = generate_one(llm, f"Other. {PROMPT}")
        assert llm.disk_cache._io.flush(30)
    [record] = caplog.records
    assert "No space left" in record.message
    assert list((tmp_path / "writing").iterdir()) == []
    with engine(tmp_path, demo) as llm:
        assert generate_one(llm).token_ids == expected.token_ids
        again = generate_one(llm, f"Other. {PROMPT}")
        assert again.token_ids == other.token_ids
        assert again.num_cached_tokens > 0


UNUSABLE = {
    # Injected, because permissions do not restrict root.
    "cannot use": mock.patch.object(
        store.Path, "mkdir", side_effect=PermissionError(13, "read-only")
    ),
    "takes inf s, computing it inf s; continuing without it": mock.patch.object(
        store.PageStore, "read_seconds", return_value=float("inf")
    ),
}


@pytest.mark.parametrize("message", UNUSABLE)
def test_unusable_disk_is_neither_read_nor_written(tmp_path, demo, caplog, stored, message):
    num_files = len(page_files(tmp_path))
    with (
        caplog.at_level(logging.WARNING, LOGGER),
        UNUSABLE[message],
        engine(tmp_path, demo) as llm,
    ):
        assert llm.disk_cache is None
        assert generate_one(llm).num_cached_tokens == 0
        assert generate_one(llm).num_cached_tokens > 0  # from memory
        generate_one(llm, f"Other. {PROMPT}")
    assert len(page_files(tmp_path)) == num_files
    [record] = caplog.records
    assert message in record.message


def test_foreign_files_in_the_directory(tmp_path, demo, caplog):
    """They are neither read nor deleted, and do not end the thread."""
    prompts = [f"{number}. {PROMPT}" for number in range(4)]
    with engine(tmp_path / "other", demo) as llm:
        for prompt in (PROMPT, *prompts):
            generate_one(llm, prompt)
    # Keys, and so the folders of pages, depend on the extension's build.
    used = {file.parent.name for file in page_files(tmp_path / "other")}
    unused = next(name for name in (f"{n:02x}" for n in range(1, 256)) if name not in used)
    with engine(tmp_path, demo) as llm:
        expected = generate_one(llm)
    files = page_files(tmp_path)
    names = ["readme", "pages/readme", "pages/00/readme", f"pages/00/{'g' * 40}", "writing/readme"]
    folders = ["pages/other", f"pages/00/{'0' * 40}", "writing/other"]
    for name in folders:
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 10**6)
    (tmp_path / "pages/00" / ("1" * 40)).symlink_to(tmp_path / "readme")
    (tmp_path / "pages" / unused).symlink_to(tmp_path / "missing")
    limit = 2 * sum(path.stat().st_size for path in files)
    with (
        caplog.at_level(logging.WARNING, LOGGER),
        engine(tmp_path, demo, prefix_cache_disk_bytes=limit) as llm,
    ):
        assert generate_one(llm).token_ids == expected.token_ids
        assert llm.disk_cache.stats.hit_tokens > 0
        for prompt in prompts:
            generate_one(llm, prompt)
            assert llm.disk_cache._io.flush(30)
        assert llm.disk_cache._io.is_alive()
        assert llm.disk_cache.stats.num_bytes <= limit
    assert caplog.records == []
    assert all((tmp_path / name).exists() for name in names + folders)


def test_pages_are_read_from_a_full_disk(tmp_path, demo, stored):
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        mock.patch.object(store, "write_page_file", side_effect=full),
        engine(tmp_path, demo) as llm,
    ):
        after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
        assert before == after  # opening the index writes nothing
        output = generate_one(llm)
        assert output.token_ids == stored.token_ids
        assert output.num_cached_tokens > 0


def test_directory_is_deleted_while_open(tmp_path, demo, caplog):
    directory = tmp_path / "cache"
    with caplog.at_level(logging.WARNING, LOGGER), engine(directory, demo) as llm:
        expected = generate_one(llm)
        assert llm.disk_cache._io.flush(30)
        shutil.rmtree(directory)
        llm.scheduler.pages.cache.evict(10**9)
        assert generate_one(llm).token_ids == expected.token_ids
        generate_one(llm, f"Other. {PROMPT}")
    assert len(caplog.records) == 1


def test_unresponsive_disk(tmp_path, demo, stored):
    with engine(tmp_path, demo) as llm, mock.patch.object(io_thread, "STALL_SECONDS", 0.05):
        cache = llm.disk_cache
        release, read = io_thread.threading.Event(), cache._store.read
        cache._store.read = lambda *args: (release.wait(30), read(*args))[1]
        assert generate_one(llm).token_ids == stored.token_ids
        assert generate_one(llm, f"Other. {PROMPT}").num_cached_tokens == 0
        assert cache.stats.hit_tokens == 0
        release.set()


@pytest.mark.parametrize("max_queued_bytes", [300_000, 1])
def test_pages_wait_in_memory_for_a_slow_writer(tmp_path, demo, max_queued_bytes):
    """Pages stay in memory until the write queue has capacity, or is empty for a larger page."""
    with (
        mock.patch.object(io_thread, "MAX_QUEUED_BYTES", max_queued_bytes),
        engine(tmp_path, demo) as llm,
    ):
        generate_one(llm)
    with engine(tmp_path, demo) as llm:
        assert generate_one(llm).num_cached_tokens > 300_000 // 8192


def test_pages_are_written_while_idle(tmp_path, demo):
    """Memory checks of an idle server retry pages that a full queue rejected."""
    with engine(tmp_path, demo) as llm:
        cache, reports = llm.disk_cache, []
        with mock.patch.object(cache._io, "can_queue", return_value=False):
            generate_one(llm)
        num_pages = len(cache._new)
        assert num_pages > 0

        def check() -> bool:
            llm._next_memory_check = 0
            reports.append(llm.check_memory())
            return reports[-2:] == [True, False] and len(page_files(tmp_path)) == num_pages

        wait_until(check)


def test_rank_group_ends(tmp_path, demo, stored):
    with engine(tmp_path, demo) as llm:
        target, error = llm.runner.target, UserError("the rank group has shut down: test.")
        with (
            mock.patch.object(target, "write_rows", side_effect=error),
            mock.patch.object(target, "logits", side_effect=error),
        ):
            [output] = llm.generate([PROMPT], GREEDY)
        assert output.error == "the step failed: the rank group has shut down: test."
    llm = open_llm(tmp_path / "new", demo)
    with mock.patch.object(llm.runner.target, "read_row", side_effect=error):
        generate_one(llm)
        llm.close()
    assert page_files(tmp_path / "new") == []


def test_serving_continues_after_close(demo, tmp_path):
    with engine(tmp_path, demo) as llm:
        expected = generate_one(llm)
        llm.add_request(f"Other. {PROMPT}", GREEDY)
        llm.step()
        io_thread = llm.disk_cache._io
        llm.close()
        assert not io_thread.is_alive()
        finish(llm)
        assert generate_one(llm).token_ids == expected.token_ids
