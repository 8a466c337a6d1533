"""Several models in one server: selection, loading, unloading, memory budget."""

import asyncio
import re
import shutil
import signal
import threading
from pathlib import Path

import httpx2
import pytest

from tests.engine.hybrid import write_hybrid
from tests.server.fault_injection import UNLUCKY
from tests.server.protocol.test_disconnect import connect
from tests.server.running_server import RunningServer, eventually
from tiny_llm.cli import serve
from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.model_size import model_size

KV_BYTES = 4_000_000
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")
BODY = {
    "/v1/completions": {"prompt": "RoPE is"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hello"}]},
    "/v1/responses": {"input": "Hello"},
}


def body(model, path="/v1/completions", **fields):
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    return {"model": model, limit: 6, "temperature": 0, **BODY[path], **fields}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two random models of different sizes."""
    root = tmp_path_factory.mktemp("models")
    write_hybrid(root / "one")
    write_hybrid(root / "two", hidden_size=96, intermediate_size=128)
    return root


def budget(folders):
    """Memory for the demo and one of the random models, or for both random ones."""
    weights = model_size(TARGET_PATH).weight_bytes + model_size(folders / "two").weight_bytes
    return weights + 2 * KV_BYTES


def flags(folders, *more):
    names = ("demo", str(folders / "one"), str(folders / "two"))
    models = [flag for name in names for flag in ("--model", name)]
    memory = ("--kv-cache-bytes", str(KV_BYTES), "--max-memory", str(budget(folders)))
    return (*models, *memory, "--max-num-seqs", "8", *more)


@pytest.fixture(scope="module")
def server(folders):
    """The demo and two random models, of which two fit the budget."""
    running = RunningServer(*flags(folders))
    yield running
    assert running.stop() == 0, "".join(running.lines[-60:])


def values(metric, text):
    """A metric's value for each model."""
    return [float(number) for number in re.findall(rf"^tiny_llm:{metric}{{.*}} (\S+)", text, re.M)]


def loaded(server):
    """Names of the loaded models."""
    return {one["id"] for one in server.get("/v1/models").json()["data"] if one["loaded"]}


# ---------------------------------------------------------------- selection


def test_models_are_listed_and_the_first_is_the_default(server):
    listed = server.get("/v1/models").json()["data"]
    assert [one["id"] for one in listed] == ["demo", "one", "two"]
    response = server.post("/v1/completions", {"prompt": "RoPE is", "max_tokens": 2})
    assert response.json()["model"] == "demo"


@pytest.mark.parametrize("path", PATHS)
def test_endpoints_select_the_model_of_the_request(server, path):
    for name in ("one", "demo", "two"):
        assert server.post(path, body(name, path)).json()["model"] == name
    missing = server.post(path, body("/etc", path))
    assert missing.status_code == 404
    assert "serves 'demo', 'one', 'two'" in missing.json()["error"]["message"]


def test_tokens_and_probes_of_a_model(server):
    tokens = server.post("/tokenize", {"prompt": "RoPE is", "model": "two"}).json()["tokens"]
    text = server.post("/detokenize", {"tokens": tokens, "model": "one"}).json()["prompt"]
    assert text == "RoPE is"
    counted = server.post("/v1/messages/count_tokens", {**BODY["/v1/messages"], "model": "one"})
    assert counted.json()["input_tokens"] > 0
    assert loaded(server) == {"one", "two"}
    for path in ("/health", "/load", "/ready", "/engine/state"):
        assert server.get(f"{path}?model=two").status_code == 200
        assert server.get(f"{path}?model=three").status_code == 404
    assert server.get("/engine/state?model=two").json()["phase"] == "ready"
    state = server.get("/engine/state?model=demo").json()
    assert (state["phase"], state["config"]) == ("unloaded", None)
    assert server.get("/ready?model=demo").status_code == 503
    assert server.get("/ready").status_code == 200


def test_viewer_of_an_unloaded_model_sees_its_next_load(server):
    server.post("/v1/completions", body("one"))
    server.post("/v1/completions", body("two"))
    expected = ["unloaded", "ready", "unloaded"]
    with httpx2.stream("GET", server.url + "/engine/events?model=demo", timeout=60) as response:
        phases = []
        for line in response.iter_lines():
            phase = re.search(r'"phase":"(.*?)"', line)
            if phase and phase[1] in expected and phases[-1:] != [phase[1]]:
                phases.append(phase[1])
                if len(phases) == len(expected):
                    break
                names = ("demo",) if len(phases) == 1 else ("one", "two")
                for name in names:
                    server.post("/v1/completions", body(name))
    assert phases == expected


def test_invalid_request_loads_no_model(server):
    server.post("/v1/completions", body("one"))
    server.post("/v1/completions", body("two"))
    assert server.post("/v1/completions", body("demo", suffix="x")).status_code == 400
    assert server.post("/v1/embeddings", {"model": "demo", "input": "x"}).status_code == 400
    assert loaded(server) == {"one", "two"}


# ---------------------------------------------------------------- budget


def test_concurrent_requests_while_models_are_swapped(server, folders):
    """Same tokens as alone; the loaded models never exceed the budget."""
    names = ("demo", "one", "two")
    seeds = range(2)

    def request(name, seed):
        return body(name, seed=seed, temperature=1.0, max_tokens=12, ignore_eos=True)

    alone = {
        (name, seed): server.post("/v1/completions", request(name, seed)).json()["choices"]
        for name in names
        for seed in seeds
    }
    memory, steps = [], []

    async def run():
        async with httpx2.AsyncClient(base_url=server.url, timeout=120) as client:

            async def one(name, seed, delay):
                await asyncio.sleep(delay)
                response = await client.post("/v1/completions", json=request(name, seed))
                assert response.json()["choices"] == alone[name, seed], (name, seed)

            async def watch():
                while True:
                    text = (await client.get("/metrics")).text
                    memory.append(sum(values("model_memory_bytes", text)))
                    steps.append(values("engine_steps_total", text))
                    await asyncio.sleep(0.05)

            watching = asyncio.create_task(watch())
            await asyncio.gather(
                *(one(name, seed, 0.1 * number) for number in range(3) for name, seed in alone)
            )
            watching.cancel()

    asyncio.run(run())
    assert 0 < max(memory) <= budget(folders)
    for totals in zip(*steps, strict=True):
        assert list(totals) == sorted(totals), "a model's total restarted with its load"


def test_least_recently_used_model_is_unloaded(server):
    for name in ("demo", "one", "demo", "two"):
        server.post("/v1/completions", body(name))
    assert loaded(server) == {"demo", "two"}
    server.post("/v1/completions", body("one"))
    assert loaded(server) == {"two", "one"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--max-memory", "9000000"], "the model 'demo' needs"),
        (["--max-memory", "1e18"], "must be at most the machine's memory"),
        (["--draft-model", "demo-draft"], "--draft-model supports a single --model, got 2"),
        (["--task", "embed"], "pass the task as --model PATH=TASK"),
        (["--record", "x.json"], "--record supports a single --model"),
        (["--tensor-parallel-size", "2"], "--tensor-parallel-size supports a single --model"),
        (["--served-model-name", "x"], "--served-model-name supports a single --model"),
        (["--model", "demo=pin"], "two models have the API name 'demo'"),
        (["--model", "demo=embedd"], "invalid options 'embedd'; use at most one task"),
        (["--model", "demo=embed,score"], "use at most one task"),
    ],
)
def test_rejected_flags(capsys, given, sentence):
    assert serve.main(["--model", "demo", "--model", "demo-draft", *given]) == 2
    assert sentence in capsys.readouterr().err


def test_pinned_models_must_fit_beside_each_other(capsys):
    models = ["--model", "demo=pin", "--model", "demo-draft"]
    assert serve.main([*models, "--kv-cache-bytes", "1e8", "--max-memory", "15e7"]) == 2
    error = capsys.readouterr().err
    assert "'demo-draft' needs" in error
    assert "for other pinned models" in error


def resident(server):
    """The server's resident memory in bytes."""
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_resident_memory_stays_within_the_budget_and_returns(tmp_path):
    """Two models of 80 MB that displace each other, beside a pinned one."""
    large = {"hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 4096}
    models = [write_hybrid(tmp_path / name, **large) for name in ("a", "b")]
    weights, kv_bytes = model_size(models[0]).weight_bytes, 8_000_000
    memory = model_size(TARGET_PATH).weight_bytes + weights + 2 * kv_bytes
    limits = ("--kv-cache-bytes", str(kv_bytes), "--max-memory", str(memory), "--idle-unload", "2")
    names = [flag for folder in models for flag in ("--model", str(folder))]
    server = RunningServer("--model", "demo=pin", *names, *limits)
    server.post("/v1/completions", body("demo"))
    base, peak = resident(server), 0
    for _ in range(4):
        for name in ("a", "b"):
            server.post("/v1/completions", body(name, prompt="word " * 300))
            peak = max(peak, resident(server))
    assert peak - base < 1.1 * (weights + kv_bytes) + 40e6, (peak - base, weights)
    assert eventually(lambda: loaded(server) == {"demo"})
    assert eventually(lambda: resident(server) - base < 0.4 * weights), resident(server) - base
    assert server.stop() == 0


# ---------------------------------------------------------------- loading


@pytest.fixture(scope="module")
def slow(folders):
    """A server whose models load slowly, with the model `gone` whose folder is removed."""
    shutil.copytree(folders / "one", folders / "gone")
    models = [flag for name in ("one", "two", "gone") for flag in ("--model", str(folders / name))]
    memory = ("--kv-cache-bytes", str(KV_BYTES), "--idle-unload", "1")
    running = RunningServer(*models, *memory, fault="slow_load")
    shutil.rmtree(folders / "gone")
    yield running
    assert running.stop() == 0, "".join(running.lines[-60:])


@pytest.mark.parametrize("path", PATHS)
def test_failed_load_is_the_error_of_its_requests(slow, path):
    failed = slow.post(path, body("gone", path))
    assert failed.status_code == 503
    sentence = "The model 'gone' could not be loaded; see the server's log."
    assert failed.json()["error"]["message"] == sentence
    stream = slow.post(path, body("gone", path, stream=True))
    assert stream.status_code == 200
    assert stream.text.startswith(": keep-alive\n\n")
    assert stream.text.count(sentence) == 1
    events = [line for line in stream.text.splitlines() if line.startswith(("data", "event"))]
    last = {"/v1/messages": "event: error", "/v1/responses": "event: error"}
    assert last.get(path, "data: [DONE]") in events
    assert slow.post(path, body("one", path)).status_code == 200
    assert slow.get("/ready").status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_stream_of_a_loading_model_gets_comments(slow, path):
    assert eventually(lambda: "one" not in loaded(slow)), "not unloaded when idle"
    cold = slow.post(path, body("one", path, stream=True)).text
    warm = slow.post(path, body("one", path, stream=True)).text
    assert cold.startswith(": keep-alive\n\n")

    def texts(stream):
        return re.findall(r'"(?:text|content|delta)":"([^"]*)"', stream)

    assert "".join(texts(cold)) == "".join(texts(warm))


def test_client_that_leaves_while_the_model_loads(slow):
    assert eventually(lambda: not loaded(slow))
    connection = connect(slow, body("two", stream=True), "/v1/completions")
    received = b""
    while b"keep-alive" not in received:
        received += connection.recv(1000)
    other = connect(slow, body("one"), "/v1/completions")  # queued behind it
    connection.close()
    other.close()
    assert eventually(lambda: "two" in loaded(slow))
    assert eventually(lambda: not loaded(slow)), "the load counts as used"
    assert slow.get("/engine/state?model=two").json()["clients"] == 0


def test_drain_during_a_load(folders):
    running = RunningServer(*flags(folders), fault="slow_load")
    responses = []
    waiting = threading.Thread(
        target=lambda: responses.append(running.post("/v1/completions", body("two")))
    )
    running.post("/v1/completions", body("one"))
    decoding = connect(
        running, body("one", max_tokens=200, ignore_eos=True, stream=True), "/v1/completions"
    )
    waiting.start()
    assert eventually(lambda: running.get("/engine/state?model=two").json()["phase"] == "loading")
    running.process.send_signal(signal.SIGTERM)
    running.wait_for("draining: ")
    waiting.join(60)
    assert responses[0].status_code == 503
    assert "shutting down" in responses[0].json()["error"]["message"]
    received = b""
    while data := decoding.recv(65536):
        received += data
    assert b"[DONE]" in received
    assert running.process.wait(60) == 0


def test_pinned_model_that_cannot_be_loaded_ends_the_server():
    models = ("--model", "demo", "--model", "demo-draft=pin")
    with pytest.raises(AssertionError, match="kv_cache_bytes must be at least"):
        RunningServer(*models, "--kv-cache-bytes", "1000")


def test_watchdog_of_a_hanging_model_ends_the_requests_of_all():
    models = ("--model", "demo", "--model", "demo-draft")
    server = RunningServer(*models, "--watchdog", "2", fault="hangs")
    assert server.post("/v1/completions", body("demo-draft")).status_code == 200
    long = body("demo-draft", max_tokens=2000, ignore_eos=True, stream=True)
    other = connect(server, long, "/v1/completions")
    assert other.recv(10)
    hanging = connect(server, body("demo", prompt=UNLUCKY, stream=True), "/v1/completions")
    server.wait_for("exiting after a failure: The engine did not finish a step")
    received = b""
    while data := hanging.recv(65536):
        received += data
    assert b"The engine failed" in received
    while data := other.recv(65536):
        received = data
    assert received.endswith(b"0\r\n\r\n"), "a stream without its end"
    assert server.process.wait(30) == 1
