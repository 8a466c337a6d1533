"""Embeddings and reranking with pooling models."""

import base64
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.server.protocols import PATHS, small_body
from tests.server.running_server import RunningServer, served
from tiny_llm import LLM
from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.output_heads import SCORE_TEMPLATE

TEXTS = ["What is RoPE?", "Paged attention. " * 20, "a"]
RERANK = {"query": "What is RoPE?", "documents": ["Bees.", {"text": "Rotary embeddings."}, "a"]}


embedder = served("--task", "embed")


def embed(server, given, **fields):
    return server.openai.embeddings.create(model="demo", input=given, **fields)


def write_reranker(folder: Path) -> Path:
    """Writes the demo checkpoint with "no" as its last vocabulary entry, for reranking."""
    shutil.copytree(TARGET_PATH, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    pair = tokenizer["model"]["merges"].pop()
    tokenizer["model"]["merges"].append(["n", "o"])
    vocab = tokenizer["model"]["vocab"]
    vocab["no"] = vocab.pop("".join(pair))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.slow
def test_embeddings_match_the_library(embedder):
    expected = LLM("demo", task="embed").embed(TEXTS)
    response = embed(embedder, TEXTS, encoding_format="float")
    assert [item.embedding for item in response.data] == expected
    assert [item.index for item in response.data] == [0, 1, 2]
    assert response.usage.prompt_tokens == response.usage.total_tokens > 20
    assert response.model == "demo"


def test_base64_holds_little_endian_float32(embedder):
    """The client requests base64 by default, and decodes it."""
    body = {"input": "a", "encoding_format": "base64"}
    text = embedder.post("/v1/embeddings", body).json()["data"][0]["embedding"]
    vector = np.frombuffer(base64.b64decode(text), "<f4")
    assert vector.shape == (256,)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
    for fields in ({}, {"encoding_format": "float"}):
        actual = np.float32(embed(embedder, "a", **fields).data[0].embedding)
        np.testing.assert_array_equal(actual, vector)


def test_token_ids_and_dimensions(embedder):
    tokens = embedder.post("/tokenize", {"prompt": "What is RoPE?"}).json()["tokens"]
    full = embed(embedder, [tokens]).data[0].embedding
    short = embed(embedder, [tokens], dimensions=16).data[0].embedding
    np.testing.assert_allclose(short, full[:16] / np.linalg.norm(full[:16]), rtol=1e-6)


@pytest.mark.slow
def test_hundreds_of_inputs_from_several_clients(embedder):
    texts = [f"text {number}" for number in range(300)]
    with ThreadPoolExecutor() as pool:
        first, second, third = pool.map(lambda _: embed(embedder, texts).data, range(3))
    assert len(first) == 300
    assert first == second == third


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/embeddings", {"input": []}, "input"),
        (
            "/v1/embeddings",
            {"input": ["a"] * 300, "dimensions": 257},
            "dimensions must be at most 256",
        ),
        ("/v1/embeddings", {"input": "word " * 3000}, "tokens"),
        ("/v1/embeddings", {"input": ""}, "empty"),
        ("/v1/embeddings", {"input": [[5_000_000]]}, "5000000"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ("/v1/rerank", RERANK, "The model 'demo' only computes embeddings."),
        *((path, small_body(path), "The model 'demo' only computes embeddings.") for path in PATHS),
    ],
)
def test_invalid_requests_are_rejected_before_computing(embedder, path, body, message):
    before = embedder.metric("prompt_tokens_total")
    assert message in embedder.reject(path, {"model": "demo", **body})
    assert embedder.metric("prompt_tokens_total") == before


def test_body_in_parts_is_valid_json(embedder):
    for count in (1, 64, 65, 128):
        response = embedder.post("/v1/embeddings", {"input": ["a"] * count, "dimensions": 2})
        assert [item["index"] for item in response.json()["data"]] == list(range(count))
        assert int(response.headers["content-length"]) == len(response.content)


def test_chat_model_rejects_embeddings(server):
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/v1/rerank", RERANK)):
        assert "The model 'demo' only generates text." in server.reject(path, body)


@pytest.mark.slow
def test_rerank_orders_documents_by_relevance(tmp_path):
    folder = write_reranker(tmp_path / "reranker")
    documents = ["Bees.", "Rotary embeddings.", "a"]
    expected = LLM(folder, task="score").score(RERANK["query"], documents)
    assert len(set(expected)) == 3
    best = {**RERANK, "top_n": 1, "return_documents": False}
    with RunningServer("--model", str(folder), "--task", "score") as running:
        response = running.post("/v1/rerank", RERANK).json()
        best = running.post("/v2/rerank", best).json()["results"]
    assert [item["relevance_score"] for item in response["results"]] == sorted(expected)[::-1]
    for item in response["results"]:
        assert item["relevance_score"] == expected[item["index"]]
        assert item["document"]["text"] == documents[item["index"]]
    assert response["usage"]["total_tokens"] > 3 * len(SCORE_TEMPLATE) / 10
    assert best == [{"index": expected.index(max(expected)), "relevance_score": max(expected)}]
