"""Embedding and reranking models: parity, batch invariance, errors."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.support import import_references
from tiny_llm import LLM, SamplingParams, UserError
from tiny_llm.demo import TARGET_PATH
from tiny_llm.engine import factory
from tiny_llm.models.output_heads import SCORE_INSTRUCTION, SCORE_TEMPLATE

# torch and transformers are imported by the fixture, because importing takes seconds.
torch: Any
transformers: Any

TEXTS = [
    "What is the capital of France?",
    "Paged attention reads keys and values through a block table. " * 8,
    "a",
    "Rome.",
    "Paged attention reads keys and values through a block table. " * 8 + "Why?",
]
MODULES = {
    "": "sentence_transformers.models.Transformer",
    "1_Pooling": "sentence_transformers.models.Pooling",
    "2_Normalize": "sentence_transformers.models.Normalize",
}
LAST_TOKEN = {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True}


@pytest.fixture(scope="module", autouse=True)
def _import_references() -> None:
    global torch, transformers
    torch, transformers = import_references()


def write_model(folder: Path, with_head: bool, pooling: dict[str, Any] | None) -> Any:
    """Saves and returns a random Qwen3 (transformers), with the demo tokenizer."""
    torch.manual_seed(3)
    config = transformers.Qwen3Config(
        vocab_size=4096,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    kind = transformers.Qwen3ForCausalLM if with_head else transformers.Qwen3Model
    theirs = kind(config).eval()
    theirs.save_pretrained(folder)
    for file in TARGET_PATH.iterdir():
        if "token" in file.name:
            shutil.copy(file, folder)
    if pooling is not None:
        (folder / "modules.json").write_text(json.dumps(modules(MODULES)))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return theirs


def modules(types: dict[str, str]) -> list[dict[str, str]]:
    """sentence-transformers' list of modules, from {path: type}."""
    return [{"path": path, "type": kind} for path, kind in types.items()]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    """Embedding model, which has no LM head: (folder, transformers model)."""
    folder = tmp_path_factory.mktemp("embedder")
    return folder, write_model(folder, with_head=False, pooling=LAST_TOKEN)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reranker")
    return folder, write_model(folder, with_head=True, pooling=None)


def test_embeddings_match_transformers(embedder):
    folder, theirs = embedder
    llm = LLM(folder)
    assert llm.task == "embed"
    for text, vector in zip(TEXTS, llm.embed(TEXTS), strict=True):
        ids = torch.tensor([llm.tokenizer.encode(text)])
        with torch.no_grad():
            expected = theirs(input_ids=ids).last_hidden_state[0, -1].numpy()
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
        assert np.dot(vector, expected / np.linalg.norm(expected)) > 0.99999


@pytest.mark.slow
def test_embeddings_are_batch_invariant(embedder):
    folder, _ = embedder
    llm = LLM(folder)
    together = llm.embed(TEXTS)
    assert together == [LLM(folder, enable_prefix_caching=False).embed(t)[0] for t in TEXTS]
    assert together == LLM(folder, max_num_batched_tokens=33, block_size=4).embed(TEXTS)
    assert together == llm.embed(TEXTS), "expected equal embeddings from cached prefixes"
    assert llm.scheduler.num_cached_tokens > 100


def test_prompts_may_be_token_ids(embedder):
    llm = LLM(embedder[0])
    assert llm.embed([llm.tokenizer.encode("Rome.")]) == llm.embed("Rome.")


def test_scores_match_transformers(reranker, monkeypatch):
    folder, theirs = reranker
    no, yes = 17, 3912
    # replaced, because the demo's tokenizer encodes "no" as two tokens
    monkeypatch.setattr(factory, "score_tokens", lambda _: (no, yes))
    llm = LLM(folder, task="score")
    query, documents = "What is {RoPE}?", ["Rotary embeddings.", "Bees make honey. " * 20]
    for document, score in zip(documents, llm.score(query, documents), strict=True):
        text = SCORE_TEMPLATE.format(instruction=SCORE_INSTRUCTION, query=query, document=document)
        ids = torch.tensor([llm.tokenizer.encode(text)])
        with torch.no_grad():
            logits = theirs(input_ids=ids).logits[0, -1, [no, yes]]
        assert score == pytest.approx(torch.softmax(logits, -1)[1].item(), abs=1e-4)
    assert llm.score(query, documents) == llm.score(query, documents)


def test_folders_of_sentence_transformers_6(embedder, tmp_path):
    """The mode's name instead of flags, other module types, and another folder name."""
    folder = tmp_path / "model"
    shutil.copytree(embedder[0], folder)
    types = [f"sentence_transformers.base.modules.{x}" for x in ("Transformer", "pooling.Pooling")]
    listed = modules(dict(zip(("", "pool"), types, strict=True)))
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").rename(folder / "pool")
    config = {"embedding_dimension": 32, "pooling_mode": "lasttoken", "include_prompt": True}
    (folder / "pool" / "config.json").write_text(json.dumps(config))
    llm = LLM(folder)
    assert llm.task == "embed"
    assert llm.embed("Rome.") == LLM(embedder[0]).embed("Rome.")
    (folder / "pool" / "config.json").write_text(json.dumps({**config, "pooling_mode": "mean"}))
    with pytest.raises(UserError, match="pool/config.json has mean, expected pooling_mode_lastt"):
        LLM(folder)


DENSE = {**MODULES, "2_Dense": "sentence_transformers.models.Dense"}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", modules(DENSE), "has a module of type 'Dense', expected only Transformer"),
        *(
            (
                "1_Pooling/config.json",
                {mode: True},
                f"has {mode}, expected pooling_mode_lasttoken only",
            )
            for mode in ("pooling_mode_mean_tokens", "pooling_mode_cls_token")
        ),
    ],
)
def test_unsupported_modules_are_rejected(embedder, tmp_path, file, content, message):
    folder = shutil.copytree(embedder[0], tmp_path / "model")
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        LLM(folder)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: llm.generate("a"), "'generate'; this model was loaded with task='embed'."),
        (lambda llm: next(llm.stream("a")), "text generation requires task='generate'"),
        (lambda llm: llm.add_request("a"), "text generation requires task='generate'"),
        (lambda llm: llm.score("a", "b"), "documents must be a list of strings, got 'b'"),
        (lambda llm: llm.score("a", ["b"]), "score requires task='score'; this model was loaded"),
        (lambda llm: llm.embed(["a", ""]), "prompt 1: the prompt is empty"),
        (lambda llm: llm.embed([["a"]]), "a prompt must be text"),
        (lambda llm: llm.embed("word " * 600), "prompt 0: the prompt has"),
    ],
)
def test_invalid_calls_are_rejected(embedder, call, message):
    with pytest.raises(UserError, match=message):
        call(LLM(embedder[0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "rank"}, "task must be 'auto', 'generate', 'embed' or 'score', got 'rank'."),
        ({"task": "embed", "draft_model": "demo-draft"}, "does not support draft_model, "),
        ({"task": "embed", "speculative": "mtp"}, "speculative='mtp' or"),
        ({"task": "score", "tensor_parallel_size": 2}, "does not support draft_model, "),
    ],
)
def test_invalid_arguments_are_rejected(options, message):
    with pytest.raises(UserError, match=message):
        LLM("demo", **options)


def test_embed_requires_an_embedding_model(demo):
    llm = LLM(demo)
    with pytest.raises(UserError, match="embed requires task='embed'; this model was loaded"):
        llm.embed("a")
    assert llm.generate("a", SamplingParams(max_tokens=1))[0].text is not None


def test_reranking_requires_tokens_for_yes_and_no(demo):
    with pytest.raises(UserError, match='does not encode "yes" and "no" as single tokens'):
        LLM(demo, task="score")
