"""`PageStore`: size limit, LRU eviction, sharing; fingerprints and page keys."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engine.disk_cache.support import page_files
from tests.engine.hybrid import write_hybrid
from tiny_llm import LLM
from tiny_llm.engine.execution.disk_tier import fingerprint
from tiny_llm.kv_storage.page_store import (
    HEADER_BYTES,
    ORPHAN_SECONDS,
    PageStore,
    last_used_ns,
    write_page_file,
)
from tiny_llm.models import load_weights

ROOT = Path(__file__).resolve().parents[3]
SIZE = 1000
FILE_SIZE = HEADER_BYTES + SIZE


def key_of(number):
    return number.to_bytes(20, "big")


def payload_of(number):
    return bytes([number % 256]) * SIZE


def write(store, *numbers, depth=0):
    return sum(store.write(key_of(n), payload_of(n), depth) for n in numbers)


def open_store(directory, num_pages=100):
    return PageStore(directory, num_pages * FILE_SIZE)


def page_numbers_on_disk(directory):
    return {int(path.name, 16) for path in page_files(directory)}


def test_page_files_are_not_overwritten(tmp_path):
    write_page_file(tmp_path / "page", key_of(7), b"payload")
    with pytest.raises(FileExistsError):
        write_page_file(tmp_path / "page", key_of(7), b"other")


def test_lru_pages_are_evicted_deepest_first(tmp_path, monkeypatch):
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)  # a slow disk would change the order
    store = open_store(tmp_path, 6)
    for number in range(6):
        write(store, number, depth=number)
    now += 10**9
    store.touch({key_of(number): last_used_ns(number) for number in range(3)})
    now += 10**9
    write(store, 10, 11)
    assert page_numbers_on_disk(tmp_path) == {0, 1, 2, 3, 10, 11}
    assert key_of(3) in store
    assert key_of(5) not in store
    now += 10**9
    write(store, *range(20, 24))
    assert page_numbers_on_disk(tmp_path) == {10, 11, 20, 21, 22, 23}


def test_pages_used_by_another_process_are_kept(tmp_path):
    first = open_store(tmp_path, 4)
    write(first, 1, 2, 3, 4, 5)  # evicts page 1 and sorts the others
    open_store(tmp_path, 4).touch({key_of(2): last_used_ns(0)})
    write(first, 6)
    assert page_numbers_on_disk(tmp_path) == {2, 4, 5, 6}


def test_size_limit_holds_after_every_write(tmp_path):
    store = open_store(tmp_path, 5)
    for number in range(40):
        write(store, *(3 * number + i for i in range(number % 4)))
        assert len(page_files(tmp_path)) <= 5
        assert store.num_bytes == len(page_files(tmp_path)) * FILE_SIZE
    kept = page_numbers_on_disk(tmp_path)
    assert store.write(key_of(200), bytes(6 * SIZE), 0) == 0  # cannot fit, evicts no other page
    assert page_numbers_on_disk(tmp_path) == kept


def test_page_that_cannot_be_deleted_still_counts(tmp_path, monkeypatch):
    def fail(path, missing_ok=False):
        raise PermissionError(f"cannot delete {path}")

    store = open_store(tmp_path, 2)
    write(store, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fail)
        with pytest.raises(PermissionError):
            write(store, 3)
    assert key_of(1) in store
    assert store.num_bytes == 2 * FILE_SIZE
    write(store, 3, 4)
    assert len(page_files(tmp_path)) == 2


def test_folder_is_rescanned_after_an_error(tmp_path, monkeypatch):
    first, second = open_store(tmp_path), open_store(tmp_path)
    write(first, 1)
    folder = first.path(key_of(1)).parent
    os.utime(folder, (1, 1))  # settled
    scan = os.scandir

    def fail(path):
        if os.fspath(path) == str(folder):
            raise OSError("cannot list the folder")
        return scan(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", fail)
        with pytest.raises(OSError, match="cannot list"):
            second.refresh()
    second.refresh()
    assert key_of(1) in second


def test_smaller_limit_applies_to_existing_pages(tmp_path):
    write(open_store(tmp_path, 10), *range(10))
    store = open_store(tmp_path, 4)
    assert store.num_bytes == len(page_files(tmp_path)) * FILE_SIZE == 4 * FILE_SIZE
    write(store, 50)
    assert len(page_files(tmp_path)) == 4
    assert 50 in page_numbers_on_disk(tmp_path)


def test_two_stores_share_a_directory(tmp_path):
    first, second = open_store(tmp_path, 6), open_store(tmp_path, 6)
    write(first, 1, 2)
    assert key_of(1) not in second
    second.refresh()
    assert second.read(key_of(1), SIZE) == payload_of(1)
    # Page 1 exists already, so only page 3 is written.
    assert write(second, 1, 3, 3) == FILE_SIZE
    write(second, *range(10, 16))
    assert page_numbers_on_disk(tmp_path) == set(range(10, 16))
    with pytest.raises(FileNotFoundError):  # `second` has evicted the page
        first.read(key_of(1), SIZE)
    first.refresh()
    assert first.num_bytes == 6 * FILE_SIZE
    assert key_of(1) not in first
    assert key_of(15) in first


def test_partial_files_of_killed_processes_are_deleted(tmp_path):
    write(open_store(tmp_path), 1)
    past = time.time() - ORPHAN_SECONDS - 1
    left, being_written, folder = (
        tmp_path / "writing" / name for name in ("1-00", "2-00", "３-00")
    )
    left.write_bytes(b"x")
    being_written.write_bytes(b"x")
    folder.mkdir()
    for path in (left, folder):
        os.utime(path, (past, past))
    assert key_of(1) in open_store(tmp_path)
    assert set((tmp_path / "writing").iterdir()) == {being_written, folder}


def test_only_this_user_may_read_the_store(tmp_path):
    umask = os.umask(0)
    try:
        store = open_store(tmp_path / "cache")
        write(store, 1)
    finally:
        os.umask(umask)
    modes = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "cache").rglob("*")}
    for path in (tmp_path / "cache", store._pages, store._writing):
        assert path.stat().st_mode & 0o777 == 0o700
    files = {path: mode for path, mode in modes.items() if path.is_file()}
    assert list(files.values()) == [0o600]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
@pytest.mark.parametrize("name", [".", "pages", "writing"])
def test_directory_writable_by_other_users_is_refused(tmp_path, name, mode):
    (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / name).chmod(mode)
    with pytest.raises(PermissionError, match=r"other users own or may write .*; choose"):
        open_store(tmp_path)


def test_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="other users own"):
        open_store(tmp_path)


def test_relative_directory_survives_chdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_store(Path("cache"))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    write(store, 1)
    assert store.read(key_of(1), SIZE) == payload_of(1)


def test_stores_with_equal_pids_write_the_same_page(tmp_path, monkeypatch):
    """Containers have separate PIDs, so two processes may have the same."""
    first, second = open_store(tmp_path), open_store(tmp_path)
    assert first._temporary_path(key_of(1)) != second._temporary_path(key_of(1))


def test_part_of_the_disk_stays_free(tmp_path, monkeypatch):
    disk_bytes = 100 * FILE_SIZE
    others = 0  # bytes of other programs' files

    def disk_usage(path):
        used = others + len(page_files(tmp_path)) * FILE_SIZE
        return shutil._ntuple_diskusage(disk_bytes, used, max(0, disk_bytes - used))

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    store = open_store(tmp_path, 200)
    for number in range(120):
        write(store, number)
    assert page_numbers_on_disk(tmp_path) == set(range(25, 120))
    others = 5 * FILE_SIZE
    assert store.read(key_of(119), SIZE) == payload_of(119)
    assert write(store, 200) == FILE_SIZE
    assert len(page_files(tmp_path)) == 90
    others = 96 * FILE_SIZE
    store.delete([key_of(number) for number in range(201)])
    assert write(store, 201) == 0


def test_pages_are_written_at_exit(tmp_path):
    program = (
        "import pathlib, sys\nfrom tests.engine.disk_cache.support import open_llm\n"
        "from tiny_llm import SamplingParams\n"
        "llm = open_llm(pathlib.Path(sys.argv[1]))\n"
        "llm.generate('The river Tavel. ' * 30, SamplingParams(max_tokens=2))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, cwd=ROOT)
    assert len(page_files(tmp_path)) > 2


def fingerprint_of(model, **options):
    return fingerprint([LLM(model, **options).runner.target.model])


def test_fingerprint_covers_weights_and_options(tmp_path, demo, monkeypatch):
    base = fingerprint_of(demo)
    assert fingerprint_of("demo") == base
    assert fingerprint_of(demo, max_num_seqs=3, max_num_batched_tokens=99) == base
    others = [
        fingerprint_of("demo-draft"),
        fingerprint_of(demo, block_size=16),
        fingerprint_of(demo, kv_cache_dtype="int8"),
        fingerprint_of(demo, activation_bits=8),
        fingerprint_of(demo, attention_backend="reference"),
        fingerprint([LLM(demo).runner.target.model, LLM("demo-draft").runner.target.model]),
    ]
    monkeypatch.setenv("TINY_LLM_CPU_ISA", "portable")
    others.append(fingerprint_of(demo))
    assert len({base, *others}) == 8


def test_fingerprint_covers_every_bit_of_the_weights(tmp_path):
    folder = write_hybrid(tmp_path / "model")
    [file] = folder.glob("*.safetensors")
    data, fingerprints = bytearray(file.read_bytes()), []
    for _ in range(3):
        fingerprints.append(fingerprint_of(load_weights(str(folder))))
        data[-3] ^= 1
        file.write_bytes(data)
    assert fingerprints[0] == fingerprints[2] != fingerprints[1]
