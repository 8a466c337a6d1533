"""Pooling models: embeddings and relevance scores instead of logits.

A pooling model computes its result at the prompt's last token:

    embed    the hidden state after the final norm, scaled to unit length (Qwen3-Embedding)
    score    the softmax over "yes" and "no" as the next token (Qwen3-Reranker)
"""

import json
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from ...errors import short_repr
from ..checkpoint.safe_io import check_file_name, read_json, read_text
from ..families.decoder import Decoder

Task = Literal["generate", "embed", "score"]
TASKS: tuple[Task, ...] = ("generate", "embed", "score")

MODULES_FILE = "modules.json"  # list of a sentence-transformers model's modules

# Prompt template that Qwen3-Reranker was trained with.
SCORE_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
SCORE_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


class EmbeddingDecoder(Decoder):
    """Decoder whose `ragged_logits` returns hidden states, len(rows)×hidden_size."""

    ragged_logits = Decoder.ragged_features


def pool_embeddings(features: mx.array) -> mx.array:
    """Scales n hidden states to unit length, in float32: n×E -> n×E."""
    features = features.astype(mx.float32)
    return features / mx.linalg.norm(features, axis=-1, keepdims=True)


def pool_scores(logits: mx.array, no_token: int, yes_token: int) -> mx.array:
    """Probability of "yes" versus "no" as n prompts' next token: n×V -> n×1."""
    pair = mx.stack([logits[:, no_token], logits[:, yes_token]], axis=-1).astype(mx.float32)
    return mx.softmax(pair, axis=-1)[:, 1:]


def detect_task(folder: Path) -> Task:
    """Task: "embed" with a sentence-transformers pooling layer, else "generate".

    Raises:
        ValueError: a pooling mode other than last-token pooling, or a module of unknown effect.
    """
    if not (folder / MODULES_FILE).is_file():
        return "generate"
    modules = json.loads(read_text(folder, MODULES_FILE))
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        raise ValueError(f"{MODULES_FILE} is not a list of objects")
    paths = {str(each.get("type")).rpartition(".")[2]: str(each.get("path")) for each in modules}
    if "Pooling" not in paths:
        return "generate"
    unknown = sorted(paths.keys() - {"Transformer", "Pooling", "Normalize"})
    if unknown:
        raise ValueError(
            f"{MODULES_FILE} has a module of type {short_repr(unknown[0])}, expected only "
            "Transformer, Pooling and Normalize"
        )
    check_file_name(folder, paths["Pooling"])
    config = read_json(folder / paths["Pooling"], "config.json")
    # sentence-transformers 6 stores the mode's name, older versions a flag for each mode.
    modes = [config["pooling_mode"]] if config.get("pooling_mode") else []
    modes += [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
    if modes not in (["lasttoken"], ["pooling_mode_lasttoken"]):
        found = ", ".join(map(str, modes)) or "no pooling mode"
        raise ValueError(
            f"{paths['Pooling']}/config.json has {found}, expected pooling_mode_lasttoken only"
        )
    return "embed"


def score_tokens(tokenizer: Any) -> tuple[int, int]:
    ids = [tokenizer.encode(word, add_special_tokens=False) for word in ("no", "yes")]
    if any(len(tokens) != 1 for tokens in ids):
        raise ValueError('its tokenizer does not encode "yes" and "no" as single tokens')
    return ids[0][0], ids[1][0]
