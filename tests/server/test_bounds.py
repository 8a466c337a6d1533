"""Oversized and malformed bodies: one-sentence errors; `/health` responds."""

import random
import re
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
    response = server.send(path, body)
    return response.status_code, "" if response.is_success else response.json()["error"]["message"]


def check(server: RunningServer, shapes: Iterable[Shape]) -> None:
    """Sends bodies sequentially and checks status, message, memory and `/health`."""
    problems = []
    for shape in shapes:
        if sys.platform == "linux":
            Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # resets VmHWM
        body, before = shape.make().encode(), memory(server, "VmRSS")
        start = time.perf_counter()
        with ThreadPoolExecutor(1) as pool:
            health = pool.submit(server.get, "/health")
            status, message = send(server, shape.path, body)
            assert health.result().status_code == 200, shape
        seconds, added = time.perf_counter() - start, memory(server, "VmHWM") - before
        measured = f"{seconds * 1e3:5.0f} ms, {added / 2**20:5.1f} MiB, {len(body) / 1e6:5.2f} MB"
        print(f"{status} {measured}  {shape}")
        is_sentence = message.endswith(".") and len(message) < 500
        if not (status == 200 or (status in (400, 404, 413) and is_sentence)):
            problems.append(f"{shape}: {status} {message[:600]}")
        if added > MAX_MEMORY_RATIO * len(body) + COMPUTE_MEMORY:
            problems.append(f"{shape}: {added / 2**20:.0f} MiB for {len(body)} bytes")
    assert not problems, "\n".join(problems)


@pytest.mark.slow
def test_shapes_cover_every_endpoint_and_list(shapes):
    v1 = ("completions", "messages", "messages/count_tokens", "responses", "embeddings", "rerank")
    others = ("/v1/chat/completions", "/v1/responses/input_tokens", "/tokenize", "/detokenize")
    assert {shape.path for shape in shapes} == {*others, *(f"/v1/{name}" for name in v1)}
    assert {f"{shape.path} {shape.field}" for shape in shapes} >= {
        "/v1/chat/completions messages[].tool_calls[].function.arguments",
        "/v1/chat/completions tool_choice.allowed_tools.tools",
        "/v1/completions logit_bias",
        "/v1/messages messages[].content[].input",
        "/v1/responses input[]",
        "/tokenize tools[].function.parameters",
    }


def test_every_list_and_object_is_bounded(server):
    def unbounded(schema: object, path: str) -> Iterator[str]:
        if isinstance(schema, dict):
            is_free = schema.get("type") == "object" and "properties" not in schema
            is_list = schema.get("type") == "array"
            if (is_list and "maxItems" not in schema) or (
                is_free and "maxProperties" not in schema
            ):
                yield path
        elements = schema.items() if isinstance(schema, dict) else enumerate(schema)
        for key, value in elements:
            if isinstance(value, (dict, list)):
                yield from unbounded(value, f"{path}.{key}")

    schemas = server.get("/openapi.json").json()["components"]["schemas"]
    requests = {name: s for name, s in schemas.items() if "ValidationError" not in name}
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
@pytest.mark.parametrize(
    ("path", "flags"),
    [
        ("/v1/embeddings", ["--task", "embed"]),
        ("/v1/rerank", ["--task", "score", "--model"]),
        ("/v1/responses", ["--response-store", "100"]),
    ],
)
def test_shapes_of_other_servers(tmp_path, shapes, exhaustive, path, flags):
    """Embeddings, reranking and stored responses."""
    model = [str(write_reranker(tmp_path / "reranker"))] if "--model" in flags else []
    chosen = [shape for shape in shapes if shape.path == path]
    with RunningServer(*flags, *model) as running:
        check(running, chosen if exhaustive or path != "/v1/responses" else chosen[::6])
        assert eventually(lambda: running.is_empty)


@pytest.mark.slow
def test_long_query_with_many_documents(tmp_path):
    """The prompts of all documents would be gigabytes."""
    model = str(write_reranker(tmp_path / "model"))
    with RunningServer("--task", "score", "--model", model) as running:
        before = memory(running, "VmHWM")
        for query, message in (
            ("a b c " * 1700, "context length"),
            ("a b c " * 160_000, "context"),
        ):
            assert message in running.reject(
                "/v1/rerank", {"query": query, "documents": ["x"] * 2048}
            )
        assert memory(running, "VmHWM") - before < COMPUTE_MEMORY
        assert running.metric("prompt_tokens_total") == 0


@pytest.mark.slow
def test_all_shapes(memory_server, shapes, exhaustive):
    check(memory_server, shapes if exhaustive else shapes[::6])
    assert eventually(lambda: memory_server.is_empty)
