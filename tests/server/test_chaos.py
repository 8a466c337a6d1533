"""Chaos test: seeded random clients; the server survives with unchanged outputs.

Clients disconnect while queued, during prefill or decoding, with FIN or RST; some read slowly, some
send invalid requests, and some make a step raise. Afterwards the engine is empty, and every
finished seeded output equals that of the same request alone.
"""

import asyncio
import json
import random
import socket
from collections.abc import Sequence
from pathlib import Path

import httpx2
import pytest

from tests.engine.hybrid import KV_BYTES_PER_TOKEN, STATE_BYTES, write_hybrid
from tests.server.fault_injection import UNLUCKY
from tests.server.running_server import RunningServer, eventually
from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.model_size import model_size

PROMPTS = ("The capital of France is", "RoPE is", "A long story: " + "word " * 300)
CLIENTS = 12  # concurrent clients


class Chaos:
    """Concurrent clients of one server.

    Args:
        server: the server under test.
        seed: determines each client's behaviour.
        models: names of the models that the clients use.
    """

    def __init__(self, server: RunningServer, seed: int, models: Sequence[str]):
        self.server = server
        self.models = models
        self.random = random.Random(seed)
        self.finished: list[tuple[str, str]] = []  # body as JSON, output

    async def run(self, count: int) -> None:
        """Runs `count` clients, `CLIENTS` at a time."""
        kinds = [self.whole, self.stream, self.leaves, self.reads_slowly, self.nonsense]
        weights = [4, 4, 4, 1, 2]
        places = asyncio.Semaphore(CLIENTS)
        async with httpx2.AsyncClient(base_url=self.server.url, timeout=120) as client:

            async def one(kind, draw):
                async with places:
                    await kind(client, draw)

            drawn = self.random.choices(kinds, weights, k=count)
            clients = [one(kind, random.Random(self.random.random())) for kind in drawn]
            await asyncio.gather(*clients)

    def body(self, draw: random.Random, stream: bool) -> dict:
        """Creates a request: seeded, or one whose step raises."""
        prompt = UNLUCKY if draw.random() < 0.03 else draw.choice(PROMPTS)
        model = {} if len(self.models) == 1 else {"model": draw.choice(self.models)}
        return {
            **model,
            "prompt": prompt,
            "seed": draw.randrange(5),
            "temperature": 1.2,
            "max_tokens": draw.choice((1, 5, 40)),
            "stream": stream,
        }

    async def whole(self, client, draw) -> None:
        body = self.body(draw, stream=False)
        response = await client.post("/v1/completions", json=body)
        assert response.status_code in (200, 429, 500), response.text
        if response.status_code == 200:
            self.finished.append((json.dumps(body), response.json()["choices"][0]["text"]))

    async def stream(self, client, draw) -> None:
        body = self.body(draw, stream=True)
        response = await client.post("/v1/completions", json=body)
        if response.status_code == 429:
            return
        self.note_stream(body, response.text)

    def note_stream(self, body, text) -> None:
        """Checks that a stream, failed or not, ends once, with its protocol's end event."""
        assert text.count("[DONE]") == 1
        assert text.endswith("data: [DONE]\n\n")
        data = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        if "error" not in data[-1]:
            assert sum(one["choices"][0]["finish_reason"] is not None for one in data) == 1
            said = "".join(one["choices"][0]["text"] for one in data)
            self.finished.append((json.dumps({**body, "stream": False}), said))

    async def leaves(self, client, draw) -> None:
        content = json.dumps({**self.body(draw, draw.random() < 0.5), "max_tokens": 400}).encode()
        host, port = self.server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(content), content)
        )
        await asyncio.sleep(draw.choice((0, 0.01, 0.1, 0.3)))
        if draw.random() < 0.5:  # RST
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        elif draw.random() < 0.5:  # half-close
            writer.write_eof()
            await reader.read(100)
        writer.close()

    async def reads_slowly(self, client, draw) -> None:
        body = {**self.body(draw, stream=True), "max_tokens": 20}
        text = ""
        async with client.stream("POST", "/v1/completions", json=body) as response:
            async for output in response.aiter_text():
                text += output
                await asyncio.sleep(0.05)
        if response.status_code == 200:
            self.note_stream(body, text)

    async def nonsense(self, client, draw) -> None:
        content = draw.choice(
            (
                b"",
                b"{",
                b"null",
                b'{"prompt": 5}',
                b"[" * 5000,
                bytes(range(256)),
                b'{"prompt": "\\ud800"}',
            )
        )
        path = draw.choice(("/v1/completions", "/v1/chat/completions", "/v1/messages"))
        headers = {"content-type": "application/json"}
        response = await client.post(path, content=content, headers=headers)
        assert response.status_code in (400, 429 if len(self.models) > 1 else 400)
        assert response.json()["error"]["message"]


def survive(count: int, seed: int, *flags: str, models: Sequence[str] = ("demo",)) -> int:
    """Runs chaos and checks the invariants; returns the server's memory afterwards, in bytes."""
    server = RunningServer("--max-num-seqs", "6", "--max-queue", "4", *flags, fault="raises")
    chaos = Chaos(server, seed, models)
    asyncio.run(chaos.run(count))
    assert eventually(lambda: server.is_empty)
    names = [one["id"] for one in server.get("/v1/models").json()["data"]]
    for name in names:
        state = server.get(f"/engine/state?model={name}").json()
        assert (state["unfinished"], state["clients"]) == (0, 0), name
    assert len(chaos.finished) > count / 10, "too few requests finished for a comparison"
    alone = {}
    for body, text in chaos.finished:
        if body not in alone:
            response = server.post("/v1/completions", json.loads(body))
            alone[body] = response.json()["choices"][0]["text"]
        assert text == alone[body], body
    pages = Path(f"/proc/{server.process.pid}/statm")
    memory = int(pages.read_text().split()[1]) * 4096 if pages.exists() else 0
    assert server.stop() == 0
    return memory


def test_60_clients():
    survive(60, 1)


def test_60_clients_of_a_hybrid_model(tmp_path):
    survive(60, 6, "--model", str(write_hybrid(tmp_path / "model")))


def two_models(folder: Path, *flags: str) -> tuple[str, ...]:
    """Flags for the demo and a hybrid model, of which one at a time fits the memory."""
    other = write_hybrid(folder / "hybrid")
    kv_bytes = 8_000_000
    memory = kv_bytes + max(model_size(other).weight_bytes, model_size(TARGET_PATH).weight_bytes)
    limits = ("--kv-cache-bytes", str(kv_bytes), "--max-memory", str(memory))
    return ("--model", "demo", "--model", str(other), *limits, *flags)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--idle-unload", "0.3"), ("--speculative", "ngram")])
def test_150_clients_of_two_models_that_displace_each_other(tmp_path, flags):
    survive(150, 8, *two_models(tmp_path, *flags), models=("demo", "hybrid"))


def test_40_clients_of_two_models_that_displace_each_other(tmp_path):
    survive(40, 9, *two_models(tmp_path), models=("demo", "hybrid"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [(), ("--speculative", "ngram"), ("--speculative", "mtp"), ("--draft-model", "demo-draft")],
)
def test_500_clients_with_few_state_slots(tmp_path, flags):
    memory = 2_000 * KV_BYTES_PER_TOKEN + 5 * STATE_BYTES
    if "--draft-model" in flags:
        memory *= 8
    folder = str(write_hybrid(tmp_path / "model", mtp=True))
    survive(500, 7, "--model", folder, "--kv-cache-bytes", str(memory), *flags)


@pytest.mark.slow
def test_500_clients_with_few_pages():
    survive(500, 2, "--kv-cache-bytes", "8000000")


@pytest.mark.slow
def test_500_clients_with_draft_tokens():
    survive(500, 3, "--draft-model", "demo-draft")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_10000_clients_do_not_leak_memory():
    """At most 1 MB per thousand requests after the first thousand."""
    after_one = survive(1000, 4, "--kv-cache-bytes", "8000000")
    assert survive(10_000, 5, "--kv-cache-bytes", "8000000") - after_one < 9 * 2**20
