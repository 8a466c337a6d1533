"""`IOThread`: waiting for loads, and their order among writes."""

import threading

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
