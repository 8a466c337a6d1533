"""Operations endpoints: probes, load, metrics, engine state, OpenAPI."""

import json

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.running_server import RunningServer, eventually


def test_metrics_are_valid_prometheus_text(server, client):
    before = server.metric("generation_tokens_total")
    client.completions.create(
        model="demo", prompt="Hello", max_tokens=5, extra_body={"ignore_eos": True}
    )
    assert server.metric("generation_tokens_total") == before + 5
    families = {f.name: f for f in text_string_to_metric_families(server.get("/metrics").text)}
    for name in ("num_requests_running", "time_to_first_token_seconds", "request_success"):
        assert families[f"tiny_llm:{name}"].samples


def test_state_is_empty_when_idle(server):
    assert eventually(lambda: server.is_empty)
    state = server.get("/engine/state").json()
    assert (state["running"], state["waiting"], state["unfinished"]) == (0, 0, 0)
    assert state["free_pages"] == state["pages"] > 0
    assert state["phase"] == "ready"


def test_events_describe_engine_steps(server):
    with httpx2.stream("GET", server.url + "/engine/events", timeout=60) as stream:
        lines = stream.iter_lines()
        while not next(lines).startswith("data:"):
            pass
        server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 3})
        observed = []
        for line in lines:
            if line.startswith('data: {"event"'):
                observed.append(json.loads(line.removeprefix("data: "))["event"])
                if observed[-1] == "request_ended":
                    break
    assert observed[:2] == ["snapshot", "request_added"]
    assert "step_scheduled" in observed


@pytest.fixture
def endless(server, client):
    """A running stream."""
    extra = {"max_tokens": 1500, "temperature": 1, "extra_body": {"ignore_eos": True}}
    with client.completions.create(model="demo", prompt="Hello", stream=True, **extra) as stream:
        next(stream)
        yield
    assert eventually(lambda: server.get("/load").json() == {"server_load": 0})


def test_state_reports_page_ownership(server, endless):
    actual = server.get("/engine/state").json()["snapshot"]
    (request,) = [r for r in actual["requests"] if r["state"] == "running"]
    # The KV cache lacks the newest output token, which no step has processed yet.
    computed = request["prompt_tokens"] + request["output_tokens"] - 1
    assert len(request["pages"]) * actual["page_size"] >= computed > 0
    assert set(request["pages"][: request["shared_pages"]]) <= set(actual["tree"]["pages"])


def test_load_is_the_number_of_requests(server, endless):
    assert server.get("/load").json() == {"server_load": 1}
    for ask in (httpx2.get, httpx2.post):
        assert ask(server.url + "/ping").json() == {"status": "ok"}


def test_head_matches_get_without_a_body(server):
    of_claude_code = ("/", "/api/hello")  # its connection checks
    for path in ("/health", "/ready", "/version", "/metrics", "/v1/models", *of_claude_code):
        response = httpx2.head(server.url + path)
        assert (response.status_code, response.content) == (200, b"")


def test_versions_and_openapi_document(server):
    assert server.get("/version").json()["version"]
    assert server.get("/docs").status_code == 200
    document = server.get("/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/messages", "/v1/responses"} <= set(document["paths"])
    operations = [each for path in document["paths"].values() for each in path.values()]
    assert not any("422" in operation["responses"] for operation in operations)


@pytest.mark.slow
def test_restarted_server_hits_pages_on_disk(tmp_path):
    flags = "--prefix-cache-dir", str(tmp_path), "--prefix-cache-disk-bytes", "1e8"
    prompt = "The trams of Lenmora are yellow. " * 20
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    texts = []
    for _ in range(2):
        with RunningServer(*flags) as server:
            response = server.post("/v1/completions", body)
            texts.append(response.json()["choices"][0]["text"])
            assert eventually(lambda server=server: server.metric("prefix_cache_disk_bytes") > 0)
            state = server.get("/engine/state").json()["disk_cache"]
            assert state["num_errors"] == server.metric("prefix_cache_disk_errors_total") == 0
            assert state["hit_tokens"] == server.metric("prefix_cache_disk_hits_total")
            assert state["num_bytes"] <= 1e8
    assert texts[0] == texts[1]
    assert list((tmp_path / "writing").iterdir()) == []
