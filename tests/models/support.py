"""Small random models of each family, as configs and as checkpoint folders."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx

from tiny_llm.models.checkpoint.dummy import random_tensors

# Sizes that no kernel's block divides; the groups are of 64, so 128 is the least that is quantized.
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
    """A checkpoint's folder without a tokenizer: config and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights, _ = random_tensors(config)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return folder
