"""Embedding and reranking models: parity, batch invariance, errors."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.parity import SIZES, TIED, heads
from tests.models.support import import_references
from tiny_llm import LLM, UserError
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
MODULES = [f"sentence_transformers.models.{x}" for x in ("Transformer", "Pooling", "Normalize")]
NEWER = [f"sentence_transformers.base.modules.{x}" for x in ("Transformer", "pooling.Pooling")]
DENSE = [*MODULES[:2], "sentence_transformers.models.Dense"]
LAST_TOKEN = {"word_embedding_dimension": 40, "pooling_mode_lasttoken": True}
BY_NAME = {"embedding_dimension": 40, "pooling_mode": "lasttoken", "include_prompt": True}


@pytest.fixture(scope="module", autouse=True)
def _import_references() -> None:
    global torch, transformers
    torch, transformers = import_references()


def write_model(folder: Path, with_head: bool) -> Any:
    """Saves and returns a random Qwen3 (transformers), with the demo tokenizer."""
    torch.manual_seed(3)
    sizes = {**SIZES, **heads(4, 2, 16), "vocab_size": 4096, "max_position_embeddings": 512}
    kind = transformers.Qwen3ForCausalLM if with_head else transformers.Qwen3Model
    theirs = kind(transformers.Qwen3Config(**sizes, **TIED)).eval()
    theirs.save_pretrained(folder)
    for file in TARGET_PATH.iterdir():
        if "token" in file.name:
            shutil.copy(file, folder)
    return theirs


def write_modules(folder: Path, pooling_folder: str, pooling: dict[str, Any], *types: str) -> None:
    """Writes sentence-transformers' list of modules, and the config of the pooling module."""
    paths = ("", pooling_folder, "2_Last")
    listed = [{"path": path, "type": kind} for path, kind in zip(paths, types, strict=False)]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / pooling_folder).mkdir(exist_ok=True)
    (folder / pooling_folder / "config.json").write_text(json.dumps(pooling))


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    """Embedding model, which has no LM head: (folder, transformers model)."""
    folder = tmp_path_factory.mktemp("embedder")
    theirs = write_model(folder, with_head=False)
    write_modules(folder, "1_Pooling", LAST_TOKEN, *MODULES)
    return folder, theirs


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reranker")
    return folder, write_model(folder, with_head=True)


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
        assert llm.embed([llm.tokenizer.encode(text)]) == [vector], "prompts may be token ids"


@pytest.mark.slow
def test_embeddings_are_batch_invariant(embedder):
    folder, _ = embedder
    llm = LLM(folder)
    together = llm.embed(TEXTS)
    assert together == [LLM(folder, enable_prefix_caching=False).embed(t)[0] for t in TEXTS]
    assert together == LLM(folder, max_num_batched_tokens=33, block_size=4).embed(TEXTS)
    assert together == llm.embed(TEXTS), "expected equal embeddings from cached prefixes"
    assert llm.scheduler.num_cached_tokens > 100


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
    folder = shutil.copytree(embedder[0], tmp_path / "model")
    shutil.rmtree(folder / "1_Pooling")
    write_modules(folder, "pool", BY_NAME, *NEWER)
    llm = LLM(folder)
    assert llm.task == "embed"
    assert llm.embed("Rome.") == LLM(embedder[0]).embed("Rome.")


@pytest.mark.parametrize(
    ("types", "pooling", "message"),
    [
        (DENSE, LAST_TOKEN, "has a module of type 'Dense', expected only Transformer"),
        (
            NEWER,
            BY_NAME | {"pooling_mode": "mean"},
            "pool/config.json has mean, expected pooling_mode_lastt",
        ),
        *(
            (MODULES, {mode: True}, f"has {mode}, expected pooling_mode_lasttoken only")
            for mode in ("pooling_mode_mean_tokens", "pooling_mode_cls_token")
        ),
    ],
)
def test_unsupported_modules_are_rejected(embedder, tmp_path, types, pooling, message):
    folder = shutil.copytree(embedder[0], tmp_path / "model")
    write_modules(folder, "pool", pooling, *types)
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


def test_other_models_are_rejected(demo):
    with pytest.raises(UserError, match="embed requires task='embed'; this model was loaded"):
        LLM(demo).embed("a")
    with pytest.raises(UserError, match='does not encode "yes" and "no" as single tokens'):
        LLM(demo, task="score")
