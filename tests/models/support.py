"""Small random models of each family as configs and checkpoint folders; ragged steps."""

import itertools
import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from tiny_llm.engine.execution.paged_model import Span, ragged_batch
from tiny_llm.models import ServingModel
from tiny_llm.models.checkpoint.dummy import random_tensors

# Sizes that are no multiple of any kernel's tile; with groups of 64, at least 128.
SIZES: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {**SIZES, "model_type": "qwen3", "head_dim": 32},
    "qwen2": {**SIZES, "model_type": "qwen2"},
    "llama": {**SIZES, "model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "mistral": {**SIZES, "model_type": "mistral", "sliding_window": None},
}
MIXTURE = {
    **FAMILIES["qwen3"],
    "model_type": "qwen3_moe",
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


def write_family(folder: Path, config: dict[str, Any]) -> Path:
    """Writes a checkpoint without a tokenizer: config and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights, _ = random_tensors(config)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return folder


PAGES_PER_SEQUENCE = 16


def run_steps(
    model: ServingModel,
    steps: Sequence[Mapping[int, range]],
    token: Callable[[int], int] = lambda position: 3 + position * 7 % 90,
) -> mx.array:
    """Runs ragged steps, each evaluated before the next.

    Args:
        model: computes the steps.
        steps: each maps a sequence's number, below 4, to the positions computed.
        token: token id at a position.

    Returns:
        Logits of all tokens of all steps, T×V.
    """
    storage = model.create_paged_storage(4 * PAGES_PER_SEQUENCE)
    logits = []
    for step in steps:
        spans = [
            Span(
                [token(position) for position in positions],
                positions.start,
                # Alternating, so no sequence's pages are contiguous.
                array("i", [4 * page + sequence for page in range(PAGES_PER_SEQUENCE)]),
            )
            for sequence, positions in step.items()
        ]
        ids = [token_id for span in spans for token_id in span.token_ids]
        batch = ragged_batch(spans, model.page_size)
        logits.append(model.ragged_logits(ids, batch, range(len(ids)), storage))
        mx.eval(logits)
    return mx.concatenate(logits)


def sequence_logits(model: ServingModel, ids: Sequence[int], ends: Sequence[int] = ()) -> mx.array:
    """Logits L×V of one sequence, computed in chunks that end at the given positions."""
    bounds = [0, *(ends or [len(ids)])]
    chunks = [{0: range(*pair)} for pair in itertools.pairwise(bounds)]
    return run_steps(model, chunks, lambda position: ids[position])


def run_sequence(model: ServingModel) -> mx.array:
    """One sequence: prompt chunks, steps of one and two tokens, and positions computed again."""
    steps, position = [], 0
    for length in (5, 1, 1, 1, 2, 2, 2, 40, 1, 1, -3, 1, 1, 25, 1, 1, 1):
        if length > 0:
            steps.append({0: range(position, position + length)})
        position += length
    return run_steps(model, steps)


def run_changing_batch(model: ServingModel) -> mx.array:
    """Decodes two sequences in three slots; one finishes and another joins."""
    steps: list[dict[int, range]] = [{0: range(50)}, {2: range(60)}]
    steps += [{0: range(50 + i, 51 + i), 2: range(60 + i, 61 + i)} for i in range(10)]
    steps += [{1: range(7)}]
    steps += [{1: range(7 + i, 8 + i), 2: range(70 + i, 71 + i)} for i in range(10)]
    return run_steps(model, steps)
