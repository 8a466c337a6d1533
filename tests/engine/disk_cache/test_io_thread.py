"""`IOThread`: waiting for loads, their order among writes, large pages, errors."""

import errno
import os
import threading

import pytest

from tests.engine.disk_cache.support import wait_until
from tiny_llm.kv_storage.disk.io_thread import IOThread
from tiny_llm.kv_storage.disk.store import PageStore


def test_end_of_a_load_without_pages_ends_the_wait(tmp_path):
    thread = IOThread(PageStore(tmp_path, 10**6))
    load = thread.start_load([(bytes(20), 1000)])  # a page that another process has evicted
    waiting = threading.Thread(target=thread.wait, args=(3600,), daemon=True)
    waiting.start()
    thread.start()
    waiting.join(30)
    assert not waiting.is_alive()
    assert thread.collect(load) == ([], True)
    thread.close(30)


def test_reads_precede_queued_writes(tmp_path, monkeypatch):
    store, calls = PageStore(tmp_path, 10**6), []
    store.write(bytes(20), b"read", 0)
    thread = IOThread(store)
    for name in ("read", "write"):
        function = getattr(store, name)
        monkeypatch.setattr(
            store,
            name,
            lambda *args, name=name, call=function: (calls.append(name), call(*args))[1],
        )
    for number in range(1, 4):
        thread.put(number.to_bytes(20, "big"), b"write", 0)
    load = thread.start_load([(bytes(20), 4)])
    thread.start()
    assert thread.flush(30)
    assert calls == ["read", "write", "write", "write"]
    assert thread.collect(load) == ([b"read"], True)
    thread.close(30)


def test_thread_survives_running_out_of_memory(tmp_path, monkeypatch):
    def fail(*args):
        raise MemoryError

    store = PageStore(tmp_path, 10**6)
    thread = IOThread(store)
    for name in ("write", "refresh"):
        monkeypatch.setattr(store, name, fail)
    thread.put(bytes(20), bytes(200), 0)
    thread.start()
    assert thread.flush(30)
    wait_until(lambda: thread.num_errors == 2)
    assert thread.is_alive()
    assert thread.is_paused
    thread.close(30)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ESTALE, errno.ETIMEDOUT])
def test_transient_error_ends_a_load_and_deletes_no_page(tmp_path, monkeypatch, number):
    def fail(*args):
        raise OSError(number, os.strerror(number))

    store, key = PageStore(tmp_path, 10**6), bytes(20)
    store.write(key, b"page", 0)
    thread = IOThread(store)
    load = thread.start_load([(key, 4)])
    with monkeypatch.context() as patch:
        patch.setattr(store, "read", fail)
        thread.start()
        wait_until(lambda: not thread._loads)
    assert thread.collect(load) == ([], True)
    assert thread.num_errors == 1
    assert store.read(key, 4) == b"page"
    thread.close(30)
