"""Disk cache across a server restart: hits, metrics, engine state."""

import pytest

from tests.server.running_server import RunningServer, eventually

BODY = {
    "prompt": "The trams of Lenmora are yellow. " * 20,
    "max_tokens": 8,
    "temperature": 0,
    "ignore_eos": True,
}


@pytest.mark.slow
def test_restarted_server_hits_pages_on_disk(tmp_path):
    flags = "--prefix-cache-dir", str(tmp_path), "--prefix-cache-disk-bytes", "1e8"
    texts = []
    for _ in range(2):
        with RunningServer(*flags) as server:
            response = server.post("/v1/completions", BODY)
            texts.append(response.json()["choices"][0]["text"])
            assert eventually(lambda server=server: server.metric("prefix_cache_disk_bytes") > 0)
            state = server.get("/engine/state").json()["disk_cache"]
            assert state["num_errors"] == server.metric("prefix_cache_disk_errors_total") == 0
            assert state["hit_tokens"] == server.metric("prefix_cache_disk_hits_total")
            assert state["num_bytes"] <= 1e8
    assert texts[0] == texts[1]
    assert list((tmp_path / "writing").iterdir()) == []
