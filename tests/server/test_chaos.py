"""Chaos tests: random clients neither crash the server nor change outputs.

Clients disconnect while queued or during prefill or decoding, with FIN or RST. Some read slowly,
send invalid requests or make a step raise. Afterwards the engine is empty, and every finished
output equals that of the same request sent alone.
"""

import asyncio
import json
import random
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import httpx2
import pytest

from tests.engine.hybrid import KV_BYTES_PER_TOKEN, STATE_BYTES, write_hybrid
from tests.server.fault_injection import FAULTY_PROMPT
from tests.server.running_server import RunningServer, eventually, request_bytes
from tests.support import resident_bytes
from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.memory import model_size

PROMPTS = ("The capital of France is", "RoPE is", "A long story: " + "word " * 300)
CLIENTS = 12  # concurrent clients


class Chaos:
    """Concurrent clients of one server, with random behavior drawn from `seed`."""

    def __init__(self, server: RunningServer, seed: int, models: Sequence[str]):
        self.server = server
        self.models = models
        self.random = random.Random(seed)
        self.finished: list[tuple[str, str]] = []  # (request body as JSON, output text)

    async def run(self, count: int) -> None:
        """Runs `count` clients, at most `CLIENTS` concurrently."""
        kinds = [self.complete, self.stream, self.disconnect, self.read_slowly, self.send_invalid]
        weights = [4, 4, 4, 1, 2]
        slots = asyncio.Semaphore(CLIENTS)
        async with httpx2.AsyncClient(base_url=self.server.url, timeout=120) as client:

            async def run_client(kind, rng):
                async with slots:
                    await kind(client, rng)

            drawn = self.random.choices(kinds, weights, k=count)
            clients = [run_client(kind, random.Random(self.random.random())) for kind in drawn]
            await asyncio.gather(*clients)

    def body(self, rng: random.Random, stream: bool) -> dict:
        """Body with a sampling seed; occasionally, the prompt makes a step raise."""
        prompt = FAULTY_PROMPT if rng.random() < 0.03 else rng.choice(PROMPTS)
        model = {} if len(self.models) == 1 else {"model": rng.choice(self.models)}
        return {
            **model,
            "prompt": prompt,
            "seed": rng.randrange(5),
            "temperature": 1.2,
            "max_tokens": rng.choice((1, 5, 40)),
            "stop": rng.choice((None, None, "e")),
            "stream": stream,
        }

    async def complete(self, client, rng) -> None:
        body = self.body(rng, stream=False)
        response = await client.post("/v1/completions", json=body)
        assert response.status_code in (200, 429, 500), response.text
        if response.status_code == 200:
            self.finished.append((json.dumps(body), response.json()["choices"][0]["text"]))

    async def stream(self, client, rng) -> None:
        body = self.body(rng, stream=True)
        response = await client.post("/v1/completions", json=body)
        if response.status_code != 429:
            self.record_stream(body, response.text)

    def record_stream(self, body, text) -> None:
        """Checks that a stream has one end event; records its text unless it failed."""
        assert text.count("[DONE]") == 1
        assert text.endswith("data: [DONE]\n\n")
        data = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        if "error" not in data[-1]:
            assert sum(chunk["choices"][0]["finish_reason"] is not None for chunk in data) == 1
            output = "".join(chunk["choices"][0]["text"] for chunk in data)
            self.finished.append((json.dumps({**body, "stream": False}), output))

    async def disconnect(self, client, rng) -> None:
        body = {**self.body(rng, rng.random() < 0.5), "max_tokens": 400}
        host, port = self.server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request_bytes("/v1/completions", body))
        await asyncio.sleep(rng.choice((0, 0.01, 0.1, 0.3)))
        if rng.random() < 0.5:  # RST
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        elif rng.random() < 0.5:  # half-close
            writer.write_eof()
            await reader.read(100)
        writer.close()

    async def read_slowly(self, client, rng) -> None:
        body = {**self.body(rng, stream=True), "max_tokens": 20}
        text = ""
        async with client.stream("POST", "/v1/completions", json=body) as response:
            async for output in response.aiter_text():
                text += output
                await asyncio.sleep(0.05)
        if response.status_code == 200:
            self.record_stream(body, text)

    async def send_invalid(self, client, rng) -> None:
        contents = (b"", b"{", b"null", b'{"prompt": 5}', b"[" * 5000, bytes(range(256)))
        content = rng.choice((*contents, b'{"prompt": "\\ud800"}'))
        path = rng.choice(("/v1/completions", "/v1/chat/completions", "/v1/messages"))
        headers = {"content-type": "application/json"}
        response = await client.post(path, content=content, headers=headers)
        assert response.status_code in (400, 429 if len(self.models) > 1 else 400)
        assert response.json()["error"]["message"]


def run_chaos(count: int, seed: int, *flags: str, models: Sequence[str] = ("demo",)) -> int:
    """Runs clients and checks invariants; returns the server's memory in bytes."""
    server = RunningServer("--max-num-seqs", "6", "--max-queue", "4", *flags, fault="raises")
    chaos = Chaos(server, seed, models)
    asyncio.run(chaos.run(count))
    assert eventually(lambda: server.is_empty)
    names = [model["id"] for model in server.get("/v1/models").json()["data"]]
    for name in names:
        state = server.get(f"/engine/state?model={name}").json()
        assert (state["unfinished"], state["clients"]) == (0, 0), name
    assert len(chaos.finished) > count / 10, "too few requests finished for a comparison"
    reference = {}
    for body, text in chaos.finished:
        if body not in reference:
            response = server.post("/v1/completions", json.loads(body))
            reference[body] = response.json()["choices"][0]["text"]
        assert text == reference[body], body
    memory = resident_bytes(server.process.pid) if sys.platform == "linux" else 0
    assert server.stop() == 0
    return memory


def demo(folder: Path) -> tuple[str, ...]:
    return ()


def hybrid(folder: Path) -> tuple[str, ...]:
    return ("--model", str(write_hybrid(folder / "hybrid", mtp=True)))


def few_states(folder: Path, factor: int = 1) -> tuple[str, ...]:
    """A hybrid model with memory for few states."""
    memory = factor * (2_000 * KV_BYTES_PER_TOKEN + 5 * STATE_BYTES)
    return (*hybrid(folder), "--kv-cache-bytes", str(memory))


def two_models(folder: Path) -> tuple[str, ...]:
    """The demo and a hybrid model, which evict each other."""
    other, kv_bytes = write_hybrid(folder / "hybrid"), 8_000_000
    memory = kv_bytes + max(model_size(path).weight_bytes for path in (other, TARGET_PATH))
    limits = ("--kv-cache-bytes", str(kv_bytes), "--max-memory", str(memory))
    return ("--model", "demo", "--model", str(other), *limits)


DRAFT = ("--draft-model", "demo-draft")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "models", "flags"),
    [
        *((60, models, ()) for models in (demo, hybrid)),
        *((150, two_models, flags) for flags in ((), ("--idle-unload", "0.3"))),
        (150, two_models, ("--speculative", "ngram")),
        (500, few_states, ()),
        *((500, few_states, ("--speculative", name)) for name in ("ngram", "mtp")),
        (500, partial(few_states, factor=8), DRAFT),
        *((500, demo, flags) for flags in (("--kv-cache-bytes", "8000000"), DRAFT)),
    ],
)
def test_clients(tmp_path, count, models, flags):
    names = ("demo", "hybrid") if models is two_models else ("demo",)
    run_chaos(count, 7, *models(tmp_path), *flags, models=names)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_10000_clients_do_not_leak_memory():
    """10,000 requests use less than 9 MiB more memory than 1,000 requests."""
    after_one = run_chaos(1000, 4, "--kv-cache-bytes", "8000000")
    assert run_chaos(10_000, 5, "--kv-cache-bytes", "8000000") - after_one < 9 * 2**20
