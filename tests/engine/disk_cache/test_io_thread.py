"""`IOThread`: waiting for loads, their order among writes, large pages, errors."""

import errno
import os
import threading

import pytest

from tests.engine.disk_cache.support import wait_until
from tiny_llm.kv_storage import io_thread
from tiny_llm.kv_storage.io_thread import IOThread
from tiny_llm.kv_storage.page_store import PageStore

KEY = bytes(20)


@pytest.fixture
def store(tmp_path):
    return PageStore(tmp_path, 10**6)


@pytest.fixture
def thread(store):
    thread = IOThread(store)
    yield thread
    thread.close(30)


def assert_wait_ends(thread, start=lambda: None):
    """Asserts that `wait` returns once `start` has been called."""
    waiting = threading.Thread(target=thread.wait, args=(3600,), daemon=True)
    waiting.start()
    start()
    waiting.join(30)
    assert not waiting.is_alive()


def test_end_of_a_load_without_pages_ends_the_wait(thread):
    load = thread.start_load([(KEY, 1000)])  # a page that another process has evicted
    assert_wait_ends(thread, thread.start)
    assert thread.collect(load) == ([], True)


def test_reads_precede_queued_writes(store, thread, monkeypatch):
    calls = []
    store.write(KEY, b"read", 0)
    for name in ("read", "write"):
        function = getattr(store, name)
        monkeypatch.setattr(
            store,
            name,
            lambda *args, name=name, call=function: (calls.append(name), call(*args))[1],
        )
    for number in range(1, 4):
        thread.put(number.to_bytes(20, "big"), b"write", 0)
    load = thread.start_load([(KEY, 4)])
    thread.start()
    assert thread.flush(30)
    assert calls == ["read", "write", "write", "write"]
    assert thread.collect(load) == ([b"read"], True)


def test_collecting_a_load_does_not_hide_the_end_of_another(thread):
    loads = [thread.start_load([(KEY, 1000)]) for _ in range(2)]
    thread.start()
    wait_until(lambda: not thread._loads)
    assert thread.collect(loads[0]) == ([], True)
    assert_wait_ends(thread)


def test_page_larger_than_the_queue_is_queued_alone(thread, monkeypatch):
    monkeypatch.setattr(io_thread, "MAX_QUEUED_BYTES", 100)
    assert thread.can_queue(200)
    thread.put(KEY, bytes(200), 0)
    assert not thread.can_queue(1)
    assert not thread.is_paused
    thread.start()
    assert thread.flush(30)
    assert thread.can_queue(200)


def test_thread_survives_running_out_of_memory(store, thread, monkeypatch):
    def fail(*args):
        raise MemoryError

    for name in ("write", "refresh"):
        monkeypatch.setattr(store, name, fail)
    thread.put(KEY, bytes(200), 0)
    thread.start()
    assert thread.flush(30)
    wait_until(lambda: thread.num_errors == 2)
    assert thread.is_alive()
    assert thread.is_paused


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ESTALE, errno.ETIMEDOUT])
def test_transient_error_ends_a_load_and_deletes_no_page(store, thread, monkeypatch, number):
    def fail(*args):
        raise OSError(number, os.strerror(number))

    store.write(KEY, b"page", 0)
    load = thread.start_load([(KEY, 4)])
    with monkeypatch.context() as patch:
        patch.setattr(store, "read", fail)
        thread.start()
        wait_until(lambda: not thread._loads)
    assert thread.collect(load) == ([], True)
    assert thread.num_errors == 1
    assert store.read(KEY, 4) == b"page"


def test_unusable_page_that_cannot_be_deleted_ends_a_load(store, thread):
    store.write(KEY, b"page", 0)
    store.path(KEY).unlink()
    store.path(KEY).mkdir()
    load = thread.start_load([(KEY, 4)])
    thread.start()
    wait_until(lambda: not thread._loads)
    assert thread.collect(load) == ([], True)
    wait_until(lambda: thread.num_errors == 1)
