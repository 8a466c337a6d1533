"""`PageReader`: waiting for loads."""

import threading

from tiny_llm.kv_storage.disk.reader import PageReader
from tiny_llm.kv_storage.disk.store import PageStore
from tiny_llm.kv_storage.disk.writer import PageWriter


def test_end_of_a_load_without_pages_ends_the_wait(tmp_path):
    store = PageStore(tmp_path, 10**6, b"model")
    reader = PageReader(store, PageWriter(store))
    load = reader.start_load([(bytes(20), 1000)])  # a page that another process has evicted
    waiting = threading.Thread(target=reader.wait, args=(3600,), daemon=True)
    waiting.start()
    reader.start()
    waiting.join(30)
    assert not waiting.is_alive()
    assert reader.collect(load) == ([], True)
    reader.close()
