"""Small random models of each family, and helpers that run ragged steps."""

import copy
import itertools
import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from tests.support import as_numpy, assert_same_bits
from tiny_llm.engine.execution.paged_model import Span, ragged_batch
from tiny_llm.kernels.prepack import row_major_layer
from tiny_llm.models.checkpoint.dummy import random_tensors
from tiny_llm.models.checkpoint.weights import read_checkpoint
from tiny_llm.models.families.decoder import Decoder
from tiny_llm.quantize import dequantize_linear

# Small sizes that allow quantization in groups of 64; the vocabulary size is odd.
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


def config(model_type: str, **fields: Any) -> dict[str, Any]:
    return {**SIZES, "model_type": model_type, **fields}


EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
GRANITE = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22}
GRANITE |= {"attention_multiplier": 0.1, "logits_scaling": 3.0}
SCALED_QUERIES = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0}
SCALED_QUERIES |= {"original_max_position_embeddings": 32, "llama_4_scaling_beta": 0.4}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": config("qwen3", head_dim=32),
    "qwen2": config("qwen2"),
    "llama": config("llama", attention_bias=True, mlp_bias=True),
    "ministral3": config("ministral3", head_dim=32, rope_parameters=SCALED_QUERIES),
    "gemma3_text": config("gemma3_text", head_dim=32, sliding_window=24, sliding_window_pattern=2),
    "smollm3": config("smollm3", no_rope_layers=[1, 0]),
    "granite": config("granite", attention_bias=False, mlp_bias=False, **GRANITE),
    "gpt_oss": config(
        "gpt_oss", head_dim=32, num_local_experts=6, num_experts_per_tok=2, sliding_window=20
    ),
}
SPARSE = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
MIXTURE = config("qwen3_moe", head_dim=32, **EXPERTS, **SPARSE)

HYBRID = config(
    "qwen3_5_text",
    num_hidden_layers=4,
    head_dim=32,
    rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
    full_attention_interval=2,
    attn_output_gate=True,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=24,
    linear_value_head_dim=32,
    linear_conv_kernel_dim=4,
)
HYBRID_MIXTURE = {
    **{name: value for name, value in HYBRID.items() if name != "intermediate_size"},
    **EXPERTS,
    "model_type": "qwen3_5_moe_text",
    "shared_expert_intermediate_size": 128,
}

WIDE_LAYERS = {"head_dim": 32, "global_head_dim": 64, "sliding_window": 24}
# Shared keys and values, per-layer inputs, heads of two sizes.
GEMMA4 = config(
    "gemma4_text",
    **WIDE_LAYERS,
    num_hidden_layers=6,
    num_key_value_heads=1,
    layer_types=["sliding_attention", "full_attention"] * 3,
    num_kv_shared_layers=2,
    use_double_wide_mlp=True,
    hidden_size_per_layer_input=64,
    vocab_size_per_layer_input=211,
    final_logit_softcapping=30.0,
)
GEMMA4_MIXTURE = config(
    "gemma4",
    **WIDE_LAYERS,
    num_hidden_layers=3,
    num_global_key_value_heads=1,
    attention_k_eq_v=True,
    layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    hidden_size_per_layer_input=0,
    enable_moe_block=True,
    num_experts=6,
    top_k_experts=2,
    moe_intermediate_size=64,
)


def name_of(config: Mapping[str, Any]) -> str:
    """Id of a test case with a config."""
    return str(config["model_type"])


def write_family(folder: Path, config: dict[str, Any], mtp: bool = False) -> Path:
    """Writes a random checkpoint without a tokenizer: config and weights."""
    return write_checkpoint(folder, config, random_tensors(config, mtp=mtp)[0])


def write_checkpoint(folder: Path, config: Mapping[str, Any], tensors: dict[str, mx.array]) -> Path:
    """Writes or replaces a checkpoint; `tensors` may come from the replaced file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    mx.eval(tensors)
    file = str(folder / "model.safetensors")
    mx.save_safetensors(file, tensors, metadata={"format": "mlx"})
    return folder


def arrays_of(folder: Path, config: Mapping[str, Any], **options: Any) -> dict[str, mx.array]:
    """Arrays of a checkpoint, by path; `options` are those of `read_checkpoint`."""
    return dict(tree_flatten(read_checkpoint(folder, config, **options)))


def assert_same_arrays(actual: dict[str, mx.array], expected: dict[str, mx.array]) -> None:
    assert actual.keys() == expected.keys()
    for name in expected:
        assert_same_bits(actual[name], expected[name], name)


def dequantized(layer: Any) -> np.ndarray:
    """Weights of a layer in float32, without rounding to bfloat16."""
    wide = copy.copy(row_major_layer(layer))
    if "scales" not in wide:
        return as_numpy(wide.weight)
    if wide.mode == "affine":
        wide.scales, wide.biases = wide.scales.astype(mx.float32), wide.biases.astype(mx.float32)
    return as_numpy(dequantize_linear(wide))


PAGES_PER_SEQUENCE = 16


def run_steps(
    model: Decoder,
    steps: Sequence[Mapping[int, range]],
    token: Callable[[int, int], int] = lambda position, sequence: 3 + position * 7 % 90,
) -> mx.array:
    """Logits (tokens × vocabulary) of ragged steps, each evaluated separately.

    Args:
        steps: positions that each step computes, by sequence number from 0 to 3.
        token: token id at a position of a sequence.
    """
    has_state = getattr(model, "state_bytes", 0) > 0  # Week 3's model has no state_bytes
    storage = model.create_paged_storage(4 * PAGES_PER_SEQUENCE, *([4] if has_state else []))
    logits = []
    for step in steps:
        spans = [
            Span(
                [token(position, sequence) for position in positions],
                positions.start,
                # Page ids of the sequences alternate, so no sequence's pages are contiguous.
                array("i", [4 * page + sequence for page in range(PAGES_PER_SEQUENCE)]),
                sequence if positions.start > 0 else -1,
                [(len(positions) - 1, sequence)],
            )
            for sequence, positions in step.items()
        ]
        ids = [token_id for span in spans for token_id in span.token_ids]
        batch = ragged_batch(spans, storage.layout, has_state)
        logits.append(model.ragged_logits(ids, batch, range(len(ids)), storage))
        mx.eval(logits)
    return mx.concatenate(logits)


def sequence_logits(model: Decoder, ids: Sequence[int], ends: Sequence[int] = ()) -> mx.array:
    """Logits of one sequence, tokens × vocabulary, in chunks ending at `ends`."""
    bounds = [0, *(ends or [len(ids)])]
    chunks = [{0: range(*pair)} for pair in itertools.pairwise(bounds)]
    return run_steps(model, chunks, lambda position, sequence: ids[position])


def run_sequence(model: Decoder) -> mx.array:
    """Runs one sequence in chunks of 1 to 40 tokens; recomputes three positions."""
    steps, position = [], 0
    for length in (5, 1, 1, 1, 2, 2, 2, 40, 1, 1, -3, 1, 1, 25, 1, 1, 1):
        if length > 0:
            steps.append({0: range(position, position + length)})
        position += length
    return run_steps(model, steps)


def run_changing_batch(model: Decoder) -> mx.array:
    """Decodes two sequences in three slots; one finishes and another joins."""
    steps: list[dict[int, range]] = [{0: range(50)}, {2: range(60)}]
    steps += [{0: range(50 + i, 51 + i), 2: range(60 + i, 61 + i)} for i in range(10)]
    steps += [{1: range(7)}]
    steps += [{1: range(7 + i, 8 + i), 2: range(70 + i, 71 + i)} for i in range(10)]
    return run_steps(model, steps)


def run_ragged(model: Decoder) -> mx.array:
    """Requests of different lengths, mixed with prefill chunks."""
    lengths, steps = [0, 0, 0], []
    for new in ([5, 9, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1], [2, 1, 1], [2, 1, 1], [2, 1, 1]):
        steps.append({s: range(lengths[s], lengths[s] + new[s]) for s in range(3)})
        lengths = [length + n for length, n in zip(lengths, new, strict=True)]
    return run_steps(model, steps)


def import_references() -> tuple[Any, Any]:
    """torch and transformers, which take seconds to import; skips without them."""
    torch = pytest.importorskip("torch", reason="needs torch: `pdm run install-torch`")
    torch.set_num_threads(1)  # idle threads spin and would take CPU time from other processes
    return torch, pytest.importorskip("transformers")


def random_ids(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, SIZES["vocab_size"], length).tolist()


def transformers_logits(model: Any, ids: Sequence[int]) -> np.ndarray:
    """Logits of a transformers model for one sequence, tokens × vocabulary."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float().numpy()
