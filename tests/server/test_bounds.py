"""Oversized and malformed bodies: one-sentence errors; `/health` responds."""

import http.client
import json
import random
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.server.openai.test_embeddings import write_reranker
from tests.server.protocol.test_disconnect import connect
from tests.server.request_shapes import Shape, all_shapes
from tests.server.running_server import RunningServer, eventually

NUM_STREAMS = 16
STREAM = {"prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
MAX_MEMORY_RATIO = 10  # maximum bytes of server memory per byte of a request body
COMPUTE_MEMORY = 128 * 2**20  # additional bytes, for an accepted request and `NUM_STREAMS` streams


class HealthProbe:
    """Polls `/health` in a thread; `longest` is its maximum latency in seconds."""

    def __init__(self, server: RunningServer):
        self.num_responses, self.longest, self._since = 0, 0.0, 0.0
        self._server = server
        self._is_stopped = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(
            self._server.url.removeprefix("http://"), timeout=60
        )
        try:
            while not self._is_stopped:
                start = time.perf_counter()
                connection.request("GET", "/health")
                assert connection.getresponse().read()
                seconds = time.perf_counter() - max(start, self._since)
                self.longest = max(self.longest, seconds)
                self.num_responses += 1
                time.sleep(0.002)
        except Exception as failure:
            self._failure = failure

    def reset(self) -> None:
        """Restarts the measurement, because the test may have held the GIL until now."""
        self.longest, self._since = 0.0, time.perf_counter()

    def responds_after(self, num_responses: int) -> bool:
        """Waits up to 30 s for another response; returns whether it arrived."""
        return eventually(lambda: self.num_responses > num_responses)

    def stop(self) -> None:
        self._is_stopped = True
        self._thread.join(90)
        assert self._failure is None, self._failure


@pytest.fixture(scope="module")
def memory_server() -> Iterator[RunningServer]:
    """Server for this file only, because the tests measure its memory."""
    with RunningServer("--no-prefix-warmup") as running:
        yield running
    log = "".join(running.lines)
    assert "Traceback" not in log, log


@pytest.fixture(scope="module")
def shapes(memory_server: RunningServer) -> list[Shape]:
    return list(all_shapes(memory_server.get("/openapi.json").json()))


def memory(server: RunningServer, name: str) -> int:
    """Memory field of `/proc/PID/status` in bytes; 0 if not on Linux."""
    if sys.platform != "linux":
        return 0
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) * 1024


def send(server: RunningServer, path: str, body: bytes) -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    if response.status == 200:
        return 200, ""
    return response.status, json.loads(content)["error"]["message"]


def check(server: RunningServer, shapes: Iterable[Shape]) -> None:
    """Sends bodies sequentially and checks status, message, memory and `/health`."""
    probe = HealthProbe(server)
    problems = []
    for shape in shapes:
        if sys.platform == "linux":
            Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # resets VmHWM
        body = shape.body
        before, num_responses = memory(server, "VmRSS"), probe.num_responses
        probe.reset()
        start = time.perf_counter()
        status, message = send(server, shape.path, body)
        seconds = time.perf_counter() - start
        added = memory(server, "VmHWM") - before
        print(
            f"{status} {seconds * 1e3:5.0f} ms, gap {probe.longest * 1e3:4.0f} ms, "
            f"{added / 2**20:5.1f} MiB, {len(body) / 1e6:5.2f} MB  {shape}"
        )
        is_sentence = message.endswith(".") and len(message) < 500
        if not (status == 200 or (status in (400, 404, 413) and is_sentence)):
            problems.append(f"{shape}: {status} {message[:600]}")
        if added > MAX_MEMORY_RATIO * len(body) + COMPUTE_MEMORY:
            problems.append(f"{shape}: {added / 2**20:.0f} MiB for {len(body)} bytes")
        assert probe.responds_after(num_responses), f"{shape}: /health does not respond"
    probe.stop()
    assert not problems, "\n".join(problems)


@pytest.mark.slow
def test_shapes_cover_every_endpoint_and_list(memory_server, shapes):
    assert {shape.path for shape in shapes} == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/embeddings",
        "/v1/rerank",
        "/tokenize",
        "/detokenize",
    }
    fields = {f"{shape.path} {shape.field}" for shape in shapes}
    assert fields >= {
        "/v1/chat/completions messages[].tool_calls[].function.arguments",
        "/v1/chat/completions tool_choice.allowed_tools.tools",
        "/v1/completions logit_bias",
        "/v1/messages messages[].content[].input",
        "/v1/responses input[]",
        "/tokenize tools[].function.parameters",
    }


def test_every_list_and_object_is_bounded(server):
    schemas = server.get("/openapi.json").json()["components"]["schemas"]
    requests = {name: s for name, s in schemas.items() if "ValidationError" not in name}

    def unbounded(schema: object, path: str) -> Iterator[str]:
        if isinstance(schema, dict):
            is_object = schema.get("type") == "object" and "properties" not in schema
            if schema.get("type") == "array" and "maxItems" not in schema:
                yield path
            if is_object and "maxProperties" not in schema:
                yield path
            for key, value in schema.items():
                yield from unbounded(value, f"{path}.{key}")
        elif isinstance(schema, list):
            for value in schema:
                yield from unbounded(value, path)

    assert not list(unbounded(requests, ""))


@pytest.mark.slow
def test_sampled_shapes_during_streams(memory_server, shapes):
    streams = [connect(memory_server, STREAM, "/v1/completions") for _ in range(NUM_STREAMS)]
    assert eventually(lambda: memory_server.metric("num_requests_running") == NUM_STREAMS)
    check(memory_server, random.Random(0).sample(shapes, 50))
    for stream in streams:
        stream.close()
    assert eventually(lambda: memory_server.is_empty)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["embed", "score", "store"])
def test_shapes_of_other_servers(tmp_path, shapes, exhaustive, kind):
    """Embeddings, reranking and stored responses."""
    flags = {
        "embed": ("--task", "embed"),
        "score": ("--task", "score", "--model", str(tmp_path / "reranker")),
        "store": ("--response-store", "100"),
    }[kind]
    path = {"embed": "/v1/embeddings", "score": "/v1/rerank", "store": "/v1/responses"}[kind]
    write_reranker(tmp_path / "reranker")
    running = RunningServer(*flags)
    chosen = [shape for shape in shapes if shape.path == path]
    check(running, chosen if exhaustive or kind != "store" else chosen[::6])
    assert eventually(lambda: running.is_empty)
    assert running.stop() == 0


@pytest.mark.slow
def test_long_query_with_many_documents(tmp_path):
    """The prompts of all documents would be gigabytes."""
    running = RunningServer("--task", "score", "--model", str(write_reranker(tmp_path / "model")))
    before = memory(running, "VmHWM")
    for query, message in (("a b c " * 1700, "context length"), ("a b c " * 160_000, "context")):
        body = json.dumps({"query": query, "documents": ["x"] * 2048}).encode()
        status, text = send(running, "/v1/rerank", body)
        assert status == 400
        assert message in text
    assert memory(running, "VmHWM") - before < COMPUTE_MEMORY
    assert running.metric("prompt_tokens_total") == 0
    assert running.stop() == 0


@pytest.mark.slow
def test_all_shapes(memory_server, shapes, exhaustive):
    check(memory_server, shapes if exhaustive else shapes[::6])
    assert eventually(lambda: memory_server.is_empty)
