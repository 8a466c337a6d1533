"""Several models in one server: selection, loading, memory budgets."""

import asyncio
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import httpx2
import pytest

from tests.engine.hybrid import write_hybrid
from tests.server.protocol.test_disconnect import connect
from tests.server.protocols import MESSAGES, PATHS, small_body
from tests.server.running_server import RunningServer, eventually, read_all
from tests.support import resident_bytes
from tiny_llm.cli.serve import ModelArgument, parse_model_argument
from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.memory import model_size

KV_BYTES = 4_000_000


def body(model, path="/v1/completions", **fields):
    fields = {"max_tokens": 6, "temperature": 0, **fields}
    return {**small_body(path, "RoPE is", **fields), "model": model}


def complete(server, *models):
    for model in models:
        response = server.post("/v1/completions", body(model))
        assert response.json()["model"] == model


def named(*models):
    return [flag for model in models for flag in ("--model", str(model))]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_hybrid(root / "one")
    write_hybrid(root / "two", hidden_size=96, intermediate_size=128)
    return root


def budget(folders):
    """Memory budget for any two of the three models."""
    weights = model_size(TARGET_PATH).weight_bytes + model_size(folders / "two").weight_bytes
    return weights + 2 * KV_BYTES


def flags(folders):
    models = named("demo", folders / "one", folders / "two")
    memory = ("--kv-cache-bytes", str(KV_BYTES), "--max-memory", str(budget(folders)))
    return (*models, *memory, "--max-num-seqs", "8")


@pytest.fixture(scope="module")
def server(folders):
    """Server with three models, of which any two fit the memory budget."""
    with RunningServer(*flags(folders)) as running:
        yield running


def values(metric, text):
    return [float(number) for number in re.findall(rf"^tiny_llm:{metric}{{.*}} (\S+)", text, re.M)]


def loaded(server):
    return {model["id"] for model in server.get("/v1/models").json()["data"] if model["loaded"]}


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_endpoints_use_the_requested_model(server, path):
    listed = server.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["demo", "one", "two"]
    for name in ("one", "demo", "two"):
        assert server.post(path, body(name, path)).json()["model"] == name
    assert "serves 'demo', 'one', 'two'" in server.reject(path, body("/etc", path), 404)
    default = body(None, path)
    del default["model"]
    assert server.post(path, default).json()["model"] == "demo"


@pytest.mark.slow
def test_tokenize_and_probes_select_the_model(server):
    tokens = server.post("/tokenize", {"prompt": "RoPE is", "model": "two"}).json()["tokens"]
    text = server.post("/detokenize", {"tokens": tokens, "model": "one"}).json()["prompt"]
    assert text == "RoPE is"
    assert MESSAGES.count(server, model="one") > 0
    assert loaded(server) == {"one", "two"}
    for path in ("/health", "/load", "/ready", "/engine/state"):
        assert server.get(f"{path}?model=two").status_code == 200
        assert server.get(f"{path}?model=three").status_code == 404
    assert server.get("/engine/state?model=two").json()["phase"] == "ready"
    state = server.get("/engine/state?model=demo").json()
    assert (state["phase"], state["config"]) == ("unloaded", None)
    assert server.get("/ready?model=demo").status_code == 503
    assert server.get("/ready").status_code == 200


def test_event_stream_of_an_unloaded_model_covers_its_next_load(server):
    complete(server, "one", "two")
    expected = ["unloaded", "ready", "unloaded"]
    with httpx2.stream("GET", server.url + "/engine/events?model=demo", timeout=60) as response:
        phases = []
        for line in response.iter_lines():
            phase = re.search(r'"phase":"(.*?)"', line)
            if phase and phase[1] in expected and phases[-1:] != [phase[1]]:
                phases.append(phase[1])
                if len(phases) == len(expected):
                    break
                complete(server, *(("demo",) if len(phases) == 1 else ("one", "two")))
    assert phases == expected


def test_invalid_request_loads_no_model(server):
    complete(server, "one", "two")
    server.reject("/v1/completions", body("demo", suffix="x"))
    server.reject("/v1/embeddings", {"model": "demo", "input": "x"})
    assert loaded(server) == {"one", "two"}


@pytest.mark.slow
def test_concurrent_requests_while_models_are_swapped(server, folders):
    """Outputs do not change, and loaded models never exceed the memory budget."""

    def request(name, seed):
        return body(name, seed=seed, temperature=1.0, max_tokens=12, ignore_eos=True)

    reference = {
        case: server.post("/v1/completions", request(*case)).json()["choices"]
        for case in product(("demo", "one", "two"), range(2))
    }
    memory, steps = [], []

    async def run():
        async with httpx2.AsyncClient(base_url=server.url, timeout=120) as client:

            async def send(case, delay):
                await asyncio.sleep(delay)
                response = await client.post("/v1/completions", json=request(*case))
                assert response.json()["choices"] == reference[case], case

            async def poll_metrics():
                while True:
                    text = (await client.get("/metrics")).text
                    memory.append(sum(values("model_memory_bytes", text)))
                    steps.append(values("engine_steps_total", text))
                    await asyncio.sleep(0.05)

            polling = asyncio.create_task(poll_metrics())
            await asyncio.gather(*(send(case, 0.1 * n) for n in range(3) for case in reference))
            polling.cancel()

    asyncio.run(run())
    assert 0 < max(memory) <= budget(folders)
    for totals in zip(*steps, strict=True):
        assert list(totals) == sorted(totals), "totals must survive reloads of a model"


def test_least_recently_used_model_is_unloaded(server):
    complete(server, "demo", "one", "demo", "two")
    assert loaded(server) == {"demo", "two"}
    complete(server, "one")
    assert loaded(server) == {"two", "one"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("demo", ModelArgument("demo")),
        ("demo=pin", ModelArgument("demo", {}, True)),
        (
            "d=embed,block-size=16,pin",
            ModelArgument("d", {"block_size": 16, "task": "embed"}, True),
        ),
        ("a=b/c=score", ModelArgument("a=b/c", {"task": "score"})),
    ],
)
def test_options_of_one_model(text, expected):
    assert parse_model_argument(text) == expected


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_resident_memory_stays_within_the_budget_and_is_released(tmp_path):
    """Two 80 MB models evict each other while a third is pinned."""
    large = {"hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 4096}
    models = [write_hybrid(tmp_path / name, **large) for name in ("a", "b")]
    weights, kv_bytes = model_size(models[0]).weight_bytes, 8_000_000
    memory = model_size(TARGET_PATH).weight_bytes + weights + 2 * kv_bytes
    limits = ("--kv-cache-bytes", str(kv_bytes), "--max-memory", str(memory), "--idle-unload", "2")
    with RunningServer(*named("demo=pin", *models), *limits) as server:
        complete(server, "demo")
        base, peak = resident_bytes(server.process.pid), 0

        def added():
            return resident_bytes(server.process.pid) - base

        for name in ("a", "b") * 4:
            server.post("/v1/completions", body(name, prompt="word " * 300))
            peak = max(peak, added())
        assert peak < 1.1 * (weights + kv_bytes) + 40e6, (peak, weights)
        assert eventually(lambda: loaded(server) == {"demo"})
        assert eventually(lambda: added() < 0.4 * weights), added()


@pytest.fixture(scope="module")
def slow_server(folders):
    """Server with slow loads and a model, `gone`, whose folder is deleted."""
    shutil.copytree(folders / "one", folders / "gone")
    models = named(*(folders / name for name in ("one", "two", "gone")))
    memory = ("--kv-cache-bytes", str(KV_BYTES), "--idle-unload", "1")
    with RunningServer(*models, *memory, fault="slow_load") as running:
        shutil.rmtree(folders / "gone")
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_failed_load_fails_its_requests(slow_server, path):
    message = "The model 'gone' could not be loaded; see the server's log."
    assert slow_server.reject(path, body("gone", path), 503) == message
    stream = slow_server.post(path, body("gone", path, stream=True))
    assert stream.status_code == 200
    assert stream.text.startswith(": keep-alive\n\n")
    assert stream.text.count(message) == 1
    events = [line for line in stream.text.splitlines() if line.startswith(("data", "event"))]
    has_error_event = path in ("/v1/messages", "/v1/responses")
    assert ("event: error" if has_error_event else "data: [DONE]") in events
    assert slow_server.post(path, body("one", path)).status_code == 200
    assert slow_server.get("/ready").status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_stream_gets_comments_while_its_model_loads(slow_server, path):
    assert eventually(lambda: "one" not in loaded(slow_server)), "idle models must be unloaded"
    cold = slow_server.post(path, body("one", path, stream=True)).text
    warm = slow_server.post(path, body("one", path, stream=True)).text
    assert cold.startswith(": keep-alive\n\n")
    texts = ["".join(re.findall(r'"(?:text|content|delta)":"([^"]*)"', s)) for s in (cold, warm)]
    assert texts[0] == texts[1] != ""


@pytest.mark.slow
def test_client_disconnects_while_its_model_loads(slow_server):
    assert eventually(lambda: not loaded(slow_server))
    connection = connect(slow_server, body("two", stream=True), "/v1/completions")
    received = b""
    while b"keep-alive" not in received:
        received += connection.recv(1000)
    other = connect(slow_server, body("one"), "/v1/completions")  # queued behind the load of "two"
    connection.close()
    other.close()
    assert eventually(lambda: "two" in loaded(slow_server))
    assert eventually(lambda: not loaded(slow_server)), "idle models must be unloaded"
    assert slow_server.get("/engine/state?model=two").json()["clients"] == 0


@pytest.mark.slow
def test_drain_during_a_load(folders):
    running = RunningServer(*flags(folders), fault="slow_load")
    complete(running, "one")
    long = body("one", max_tokens=200, ignore_eos=True, stream=True)
    decoding = connect(running, long, "/v1/completions")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(running.post, "/v1/completions", body("two"))
        state = "/engine/state?model=two"
        assert eventually(lambda: running.get(state).json()["phase"] == "loading")
        running.process.send_signal(signal.SIGTERM)
        running.wait_for("draining: ")
        response = waiting.result(60)
    assert response.status_code == 503
    assert "shutting down" in response.json()["error"]["message"]
    assert b"[DONE]" in read_all(decoding)
    assert running.process.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--lora-modules", "x=/nonexistent"), "/nonexistent"),
        (
            (*named("demo", "demo-draft=pin"), "--kv-cache-bytes", "1000"),
            "kv_cache_bytes must be at least",
        ),
        (("--task", "score"), 'its tokenizer does not encode "yes" and "no" as single tokens'),
    ],
)
def test_model_that_cannot_be_loaded_is_one_sentence(flags, message):
    server = RunningServer(*flags, ready=False)
    assert server.process.wait(60) == 2
    [line] = [line for line in server.lines if "ERROR" in line]
    assert "exiting after a failure: " in line
    assert message in line
    log = "".join(server.lines)
    assert not re.search("Traceback|most recent call first", log)


def test_memory_requirement_is_read_again_at_each_load(tmp_path):
    """The folder's files have grown since the start, and now exceed the budget."""
    folder = write_hybrid(tmp_path / "grown")
    memory = ("--kv-cache-bytes", str(KV_BYTES), "--max-memory", "15e6")
    with RunningServer(*named("demo=pin", folder), *memory, "--idle-unload", "0.1") as server:
        assert server.post("/v1/completions", body("grown")).status_code == 200
        assert eventually(lambda: loaded(server) == {"demo"})
        shutil.rmtree(folder)
        write_hybrid(folder, vocab_size=65536)
        response = server.post("/v1/completions", body("grown"))
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "model_load_failed"
        server.wait_for(r"the model 'grown' cannot be loaded: it needs [\d,]+ bytes besides")
        assert server.post("/v1/completions", body("demo")).status_code == 200
