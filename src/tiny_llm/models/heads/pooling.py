"""Pooling models: embeddings and relevance scores instead of logits.

A pooling model computes its result at the prompt's last token:

    embed    the hidden state after the final norm, scaled to unit length (Qwen3-Embedding)
    score    the softmax over "yes" and "no" as the next token (Qwen3-Reranker)
"""

from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from ..checkpoint.safe_io import read_json
from ..families.decoder import Decoder

Task = Literal["generate", "embed", "score"]
TASKS: tuple[Task, ...] = ("generate", "embed", "score")

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
        ValueError: the checkpoint uses a pooling mode other than last-token pooling.
    """
    pooling = folder / "1_Pooling"
    if not (folder / "modules.json").is_file() or not (pooling / "config.json").is_file():
        return "generate"
    config = read_json(pooling, "config.json")
    modes = [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
    if modes != ["pooling_mode_lasttoken"]:
        raise ValueError(
            f"1_Pooling/config.json has {', '.join(modes) or 'no pooling mode'}, expected "
            "pooling_mode_lasttoken only"
        )
    return "embed"


def score_tokens(tokenizer: Any) -> tuple[int, int]:
    """Token ids of "no" and "yes", in this order."""
    ids = [tokenizer.encode(word, add_special_tokens=False) for word in ("no", "yes")]
    if any(len(tokens) != 1 for tokens in ids):
        raise ValueError('its tokenizer does not encode "yes" and "no" as single tokens')
    return ids[0][0], ids[1][0]
