"""Processes that share a cache directory are killed at random times."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

from tests.engine.disk_cache import crash_worker
from tests.engine.disk_cache.support import page_files
from tiny_llm.kv_storage import page_store as store_module
from tiny_llm.kv_storage.page_store import HEADER_BYTES, PageStore, last_used_ns

ROOT = Path(__file__).resolve().parents[3]
PAYLOAD_BYTES = 20_000
MAX_BYTES = 40 * (HEADER_BYTES + PAYLOAD_BYTES)


def key_of(number: int) -> bytes:
    return number.to_bytes(20, "big")


def payload_of(number: int) -> bytes:
    return random.Random(number).randbytes(PAYLOAD_BYTES)


def write_until_killed(directory: Path, seed: int) -> None:
    rng = random.Random(seed)
    store = PageStore(directory, MAX_BYTES)
    while True:
        number = rng.randrange(200)
        if rng.random() < 0.1:
            store.delete([key_of(number)])
        store.write(key_of(number), payload_of(number), number % 7)
        store.touch({key_of(number): last_used_ns(number % 7)})
        if rng.random() < 0.1:
            store.refresh()


def check_pages(directory: Path) -> int:
    """Verifies all pages; returns their number."""
    store, files = PageStore(directory, 10**9), page_files(directory)
    for path in files:
        key = bytes.fromhex(path.name)
        assert store.read(key, PAYLOAD_BYTES) == payload_of(int.from_bytes(key, "big"))
    assert store.num_bytes == len(files) * (HEADER_BYTES + PAYLOAD_BYTES)
    return len(files)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_killed_writers_leave_a_consistent_store(tmp_path, exhaustive):
    context = multiprocessing.get_context("spawn")
    rng, counts = random.Random(1), []
    for round_number in range(100 if exhaustive else 3):
        writers = [
            context.Process(target=write_until_killed, args=(tmp_path, 2 * round_number + i))
            for i in range(2)
        ]
        for writer in writers:
            writer.start()
        before = {path.name for path in page_files(tmp_path)}
        while {path.name for path in page_files(tmp_path)} <= before:
            time.sleep(0.005)
            assert all(writer.is_alive() for writer in writers)
        time.sleep(rng.random() * 0.2)
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
        counts.append(check_pages(tmp_path))
    assert counts[-1] > 0
    with mock.patch.object(store_module, "ORPHAN_SECONDS", -1):
        PageStore(tmp_path, MAX_BYTES)
    assert list((tmp_path / "writing").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_engines_never_cause_wrong_tokens(tmp_path, exhaustive, ranks):
    """Two engines at a time share a directory and are killed under load."""
    expected = crash_worker.expected_tokens(ranks)
    rng, num_answers, hits = random.Random(2), 0, 0
    for round_number in range(100 if exhaustive else 2):
        command = [sys.executable, "-m", crash_worker.__name__, str(tmp_path)]
        workers = [
            subprocess.Popen(
                [*command, str(2 * round_number + i), str(ranks)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for i in range(2)
        ]
        for worker in workers:
            for _ in range(rng.randrange(1, 4)):
                answer = json.loads(worker.stdout.readline())
                for number, token_ids in answer["answers"]:
                    assert token_ids == expected[number]
                    num_answers += 1
                hits += answer["hits"]
        time.sleep(rng.random() * 0.1)
        for worker in workers:
            worker.kill()
            worker.wait()
            worker.stdout.close()
    print(f"{2 * (round_number + 1)} kills, {num_answers} answers, {hits} tokens from disk")
    assert hits > 0
