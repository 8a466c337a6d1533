"""`PageStore`: size limit, LRU eviction, sharing; fingerprints and page keys."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engine.disk_cache.support import engine, generate_one, open_llm, page_files, wait_until
from tests.engine.hybrid import write_hybrid
from tiny_llm import LLM
from tiny_llm.engine.execution.disk_cache.fingerprint import fingerprint
from tiny_llm.engine.execution.disk_cache.keys import page_key, state_key
from tiny_llm.kv_storage.disk.page_file import read_page_file, write_page_file
from tiny_llm.kv_storage.disk.store import ORPHAN_SECONDS, PageStore, StoredPage, stored_bytes
from tiny_llm.models import load_weights

ROOT = Path(__file__).resolve().parents[3]
SIZE = 1000


def key_of(number):
    return number.to_bytes(20, "big")


def page(number, depth=0):
    return StoredPage(key_of(number), depth, bytes([number % 256]) * SIZE)


def open_store(directory, num_pages=100, model=b"model"):
    return PageStore(directory, num_pages * stored_bytes(SIZE), model)


def page_numbers_on_disk(directory):
    return {int(path.name, 16) for path in page_files(directory)}


@pytest.mark.parametrize("num_bytes", [0, 1, 4096, 100_001])
def test_page_file_round_trip(tmp_path, num_bytes):
    payload = os.urandom(num_bytes)
    write_page_file(tmp_path / "page", key_of(7), payload)
    assert read_page_file(tmp_path / "page", key_of(7), num_bytes) == payload
    with pytest.raises(FileExistsError):
        write_page_file(tmp_path / "page", key_of(7), payload)


def test_lru_pages_are_evicted_deepest_first(tmp_path):
    store = open_store(tmp_path, 6)
    store.write([page(number, depth=number) for number in range(3)])
    store.write([page(number, depth=number) for number in range(3, 6)])
    store.touch([key_of(number) for number in range(3)])
    store.write([page(10), page(11)])
    assert page_numbers_on_disk(tmp_path) == {0, 1, 2, 3, 10, 11}
    assert key_of(3) in store
    assert key_of(5) not in store
    store.write([page(number) for number in range(20, 24)])
    assert page_numbers_on_disk(tmp_path) == {10, 11, 20, 21, 22, 23}


def test_size_limit_holds_after_every_write(tmp_path):
    store = open_store(tmp_path, 5)
    for number in range(40):
        store.write([page(3 * number + i) for i in range(number % 4)])
        assert len(page_files(tmp_path)) <= 5
        assert store.num_bytes == len(page_files(tmp_path)) * stored_bytes(SIZE)
    store.write([page(200 + i) for i in range(9)])  # more pages than the size limit allows
    assert page_numbers_on_disk(tmp_path) == {200, 201, 202, 203, 204}


def test_smaller_limit_applies_to_existing_pages(tmp_path):
    store = open_store(tmp_path, 10)
    store.write([page(number) for number in range(10)])
    store.close()
    store = open_store(tmp_path, 4)
    store.write([page(50)])
    assert len(page_files(tmp_path)) == 4
    assert 50 in page_numbers_on_disk(tmp_path)


def test_two_stores_share_a_directory(tmp_path):
    first, second = open_store(tmp_path, 6), open_store(tmp_path, 6)
    first.write([page(1), page(2)])
    assert key_of(1) not in second
    second.refresh()
    assert second.read(key_of(1), SIZE) == page(1).payload
    # Page 1 exists already, so only page 3 is written.
    assert second.write([page(1), page(3), page(3)]) == stored_bytes(SIZE)
    second.write([page(number) for number in range(10, 16)])
    assert first.num_bytes <= 6 * stored_bytes(SIZE)
    assert page_numbers_on_disk(tmp_path) == set(range(10, 16))
    with pytest.raises(FileNotFoundError):  # `second` has evicted the page
        first.read(key_of(1), SIZE)
    first.delete([key_of(1)])
    assert key_of(1) not in first


def test_models_share_the_limit_but_not_pages(tmp_path):
    first, second = open_store(tmp_path, 4, b"first"), open_store(tmp_path, 4, b"second")
    first.write([page(1), page(2)])
    second.write([page(3), page(4)])
    second.refresh()
    assert key_of(1) not in second
    assert open_store(tmp_path, 4, b"first")._keys == {key_of(1), key_of(2)}
    second.write([page(5), page(6), page(7)])
    assert len(page_numbers_on_disk(tmp_path)) == 4


def test_sweep_removes_leftovers_of_killed_processes(tmp_path):
    store = open_store(tmp_path)
    store.write([page(1)])
    past = time.time() - ORPHAN_SECONDS - 1
    left, being_written, folder = (
        tmp_path / "writing" / name for name in ("1-00", "2-00", "３-00")
    )
    left.write_bytes(b"x")
    being_written.write_bytes(b"x")
    folder.mkdir()
    for path in (left, folder):
        os.utime(path, (past, past))
    old, new, foreign = store.path(key_of(2)), store.path(key_of(3)), tmp_path / "pages/00/readme"
    for path in (old, new, foreign):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    os.utime(old, (past, past))
    os.utime(store.path(key_of(1)), (past, past))
    os.utime(foreign, (past, past))
    store.sweep()
    assert set((tmp_path / "writing").iterdir()) == {being_written, folder}
    assert store.path(key_of(1)).exists()
    assert new.exists()
    assert foreign.exists()
    assert not old.exists()


def test_only_this_user_may_read_the_store(tmp_path):
    umask = os.umask(0)
    try:
        store = open_store(tmp_path / "cache")
        store.write([page(1)])
    finally:
        os.umask(umask)
    modes = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "cache").rglob("*")}
    for path in (tmp_path / "cache", store._pages, store._writing):
        assert path.stat().st_mode & 0o777 == 0o700
    files = {path: mode for path, mode in modes.items() if path.is_file()}
    assert len(files) == 3  # index, journal and page
    assert set(files.values()) == {0o600}
    # Truncating the `-shm` file of write-ahead logging would kill the process with SIGBUS.
    assert not list((tmp_path / "cache").glob("*-shm"))


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
    store.write([page(1)])
    assert store.read(key_of(1), SIZE) == page(1).payload


def test_stores_with_equal_pids_write_the_same_page(tmp_path, monkeypatch):
    """Containers have separate PIDs, so two processes may have the same."""
    first, second = open_store(tmp_path), open_store(tmp_path)
    assert first._temporary_path(key_of(1)) != second._temporary_path(key_of(1))


def test_part_of_the_disk_stays_free(tmp_path, monkeypatch):
    disk_bytes = 100 * stored_bytes(SIZE)
    others = 0  # bytes of other programs' files

    def disk_usage(path):
        used = others + len(page_files(tmp_path)) * stored_bytes(SIZE)
        return shutil._ntuple_diskusage(disk_bytes, used, max(0, disk_bytes - used))

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    store = open_store(tmp_path, 200)
    for number in range(120):
        store.write([page(number)])
    assert page_numbers_on_disk(tmp_path) == set(range(25, 120))
    others = 5 * stored_bytes(SIZE)
    assert store.read(key_of(119), SIZE) == page(119).payload
    assert store.write([page(200)]) == stored_bytes(SIZE)
    assert len(page_files(tmp_path)) == 90
    others = 96 * stored_bytes(SIZE)
    store.delete([key_of(number) for number in range(201)])
    assert store.write([page(201)]) == 0


def test_engine_stays_within_the_limit(tmp_path, demo):
    page_bytes = stored_bytes(LLM(demo).runner.target.model.kv_bytes_per_token * 32)
    with engine(tmp_path, demo, prefix_cache_disk_bytes=10 * page_bytes) as llm:
        for number in range(8):
            generate_one(llm, f"{number} is a number. " * 12)
            assert llm.disk_cache._writer.flush(30)
            assert sum(path.stat().st_size for path in page_files(tmp_path)) <= 10 * page_bytes
        assert llm.disk_cache.stats.num_bytes <= 10 * page_bytes
    assert len(page_files(tmp_path)) > 5


def test_two_engines_share_a_directory(tmp_path, demo):
    with engine(tmp_path, demo) as first, engine(tmp_path, demo) as second:
        expected = generate_one(first)
        assert first.disk_cache._writer.flush(30)
        store = second.disk_cache._store
        wait_until(lambda: len(store._keys) == len(page_files(tmp_path)))
        output = generate_one(second)
        assert output.num_cached_tokens > 0
        assert output.token_ids == expected.token_ids


def test_finalizer_writes_queued_pages(tmp_path, demo):
    llm = open_llm(tmp_path, demo)
    generate_one(llm)
    llm.disk_cache._finalizer()  # Python calls it on garbage collection or at exit
    assert page_files(tmp_path)


def test_pages_are_written_at_exit(tmp_path):
    program = (
        "import pathlib, sys\nfrom tests.engine.disk_cache.support import open_llm\n"
        "from tiny_llm import SamplingParams\n"
        "llm = open_llm(pathlib.Path(sys.argv[1]))\n"
        "llm.generate('The river Tavel. ' * 30, SamplingParams(max_tokens=2))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, cwd=ROOT)
    assert len(page_files(tmp_path)) > 2


# ---------------------------------------------------------------- keys


def test_keys_depend_on_the_whole_prefix():
    root = bytes(20)
    first = page_key(root, [1, 2, 3])
    assert first == page_key(root, (1, 2, 3))
    others = [
        page_key(root, [1, 2, 4]),
        page_key(root, [1, 2]),
        page_key(key_of(1), [1, 2, 3]),
        page_key(first, [1, 2, 3]),
        state_key(first),
    ]
    assert len({first, *others}) == 6


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
    base = fingerprint_of(load_weights(str(folder)))
    [file] = folder.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    assert fingerprint_of(load_weights(str(folder))) != base
    data[-3] ^= 1
    file.write_bytes(data)
    assert fingerprint_of(load_weights(str(folder))) == base
