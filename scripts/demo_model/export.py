"""Exports a checkpoint to a quantized MLX folder, or dequantizes a folder.

    python -m demo_model.export --checkpoint FILE --tokenizer FOLDER --out FOLDER
    python -m demo_model.export --dequantized --folder FOLDER --out FOLDER

The first form quantizes the weights (4 bits, groups of 128, including the embedding) and checks
that the result is bit-identical to the quantization in training. The second converts an MLX folder
to a Hugging Face folder with the same values in bfloat16, for `transformers` and for tests.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from torch import Tensor

from .hybrid import HybridConfig
from .model import CONFIGS, ModelConfig
from .quantization import BITS, GROUP_SIZE, fake_quantize

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
QUANTIZATION = {"group_size": GROUP_SIZE, "bits": BITS, "mode": "affine"}
ATTENTION_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
MLP_PARTS = ("gate_proj", "up_proj", "down_proj")
HYBRID_TYPE = "qwen3_5_text"
CONV, DECAY = "conv1d.weight", "A_log"
# Norms of a hybrid model that Hugging Face stores as w and applies as 1 + w.
SHIFTED_NORMS = ("layernorm.weight", "q_norm.weight", "k_norm.weight", "model.norm.weight")


def checkpoint_name(name: str) -> str:
    """Maps a parameter name of the training model to its name in MLX and Hugging Face folders."""
    parts = name.split(".")
    if parts[0] == "layers" and parts[2] in ATTENTION_PARTS:
        parts.insert(2, "self_attn")
    elif parts[0] == "layers" and parts[2] in MLP_PARTS:
        parts.insert(2, "mlp")
    return ".".join(["model", *parts])


def to_mlx(tensor: Tensor) -> mx.array:
    """Converts a tensor to a bfloat16 MLX array."""
    return mx.array(tensor.bfloat16().float().numpy()).astype(mx.bfloat16)


def quantize_weights(master: dict[str, Tensor]) -> dict[str, mx.array]:
    """Quantizes all matrices; raises `ValueError` if one differs from training."""
    weights = {}
    for name, tensor in master.items():
        key, array = checkpoint_name(name), to_mlx(tensor)
        if key.endswith(DECAY):
            array = mx.array(tensor.float().numpy())
        elif key.endswith(CONV):
            array = array.swapaxes(1, 2)  # C×1×K in PyTorch, C×K×1 in MLX
        if tensor.dim() != 2:
            weights[key] = array
            continue
        packed, scales, biases = mx.quantize(array, group_size=GROUP_SIZE, bits=BITS)
        restored = mx.dequantize(packed, scales, biases, group_size=GROUP_SIZE, bits=BITS)
        trained = fake_quantize(tensor).float().numpy()
        if not np.array_equal(np.array(restored.astype(mx.float32)), trained):
            raise ValueError(f"[export] {name}: quantized values differ from those in training")
        stem = key.removesuffix("weight")
        weights[key], weights[f"{stem}scales"], weights[f"{stem}biases"] = packed, scales, biases
    return weights


def dequantize_weights(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Dequantizes weights to bfloat16."""
    plain = {}
    for key, array in weights.items():
        if key.endswith((".scales", ".biases")):
            continue
        stem = key.removesuffix("weight")
        if f"{stem}scales" in weights:
            scales, biases = weights[f"{stem}scales"], weights[f"{stem}biases"]
            array = mx.dequantize(array, scales, biases, group_size=GROUP_SIZE, bits=BITS)
        plain[key] = array
    return plain


def to_hugging_face(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Converts a hybrid model's convolutions and norms from MLX's layout to Hugging Face's."""
    converted = dict(weights)
    for key, array in weights.items():
        if key.endswith(CONV):
            converted[key] = array.swapaxes(1, 2)
        elif key.endswith(SHIFTED_NORMS):
            converted[key] = array.astype(mx.float32) - 1
    return converted


def weights_of(folder: Path) -> dict[str, Tensor]:
    """Loads an exported Qwen3 folder's weights, dequantized and named as in the training model."""
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict), "mx.load returned no dict of named arrays"
    plain = dequantize_weights(weights)
    return {
        key.removeprefix("model.").replace("self_attn.", "").replace("mlp.", ""): torch.from_numpy(
            np.array(array.astype(mx.float32))
        )
        for key, array in plain.items()
    }


def config_json(config: ModelConfig | HybridConfig, end: int, pad: int) -> dict:
    """Contents of `config.json`, without the quantization entries."""
    fields = {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "eos_token_id": end,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "model_type": "qwen3",
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "pad_token_id": pad,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }
    if isinstance(config, ModelConfig):
        plain = {"rope_scaling": None, "rope_theta": config.rope_theta, "use_sliding_window": False}
        return fields | plain
    rope = {
        "rope_type": "default",
        "rope_theta": config.rope_theta,
        "partial_rotary_factor": config.partial_rotary_factor,
    }
    return fields | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": HYBRID_TYPE,
        "attn_output_gate": True,
        "full_attention_interval": config.full_attention_interval,
        "linear_conv_kernel_dim": config.conv_kernel_dim,
        "linear_key_head_dim": config.key_head_dim,
        "linear_num_key_heads": config.num_key_heads,
        "linear_num_value_heads": config.num_value_heads,
        "linear_value_head_dim": config.value_head_dim,
        "mamba_ssm_dtype": "float32",
        "rope_parameters": rope,
    }


def write_json(path: Path, content: dict) -> None:
    """Writes indented JSON with a trailing newline."""
    path.write_text(json.dumps(content, indent=2) + "\n")


def write_weights(folder: Path, weights: dict[str, mx.array], file_format: str) -> None:
    """Writes a safetensors file and its index."""
    name = "model.safetensors"
    mx.save_safetensors(str(folder / name), weights, metadata={"format": file_format})
    total = sum(array.nbytes for array in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(sorted(weights), name)}
    write_json(folder / "model.safetensors.index.json", index)


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copies the tokenizer files."""
    for name in TOKENIZER_FILES:
        shutil.copyfile(source / name, folder / name)


def export_quantized(checkpoint: Path, tokenizer: Path, folder: Path) -> None:
    """Exports a training checkpoint to a quantized MLX folder."""
    saved = torch.load(checkpoint, weights_only=True, map_location="cpu")
    added = json.loads((tokenizer / "tokenizer.json").read_text())["added_tokens"]
    ids = {token["content"]: token["id"] for token in added}
    end, pad = ids["<|im_end|>"], ids["<|endoftext|>"]
    which = saved["which"]
    config = config_json(CONFIGS[which] if which in CONFIGS else HybridConfig(), end, pad)
    config |= {"quantization": QUANTIZATION, "quantization_config": QUANTIZATION}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    write_json(
        folder / "generation_config.json",
        {"do_sample": False, "eos_token_id": [end, pad], "pad_token_id": pad},
    )
    write_weights(folder, quantize_weights(saved["master"]), "mlx")
    copy_tokenizer(tokenizer, folder)


def export_dequantized(source: Path, folder: Path) -> None:
    """Exports a quantized MLX folder to a bfloat16 Hugging Face folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    for entry in ("quantization", "quantization_config"):
        config.pop(entry)
    write_json(folder / "config.json", config)
    shutil.copyfile(source / "generation_config.json", folder / "generation_config.json")
    weights = mx.load(str(source / "model.safetensors"))
    assert isinstance(weights, dict), "mx.load returned no dict of named arrays"
    plain = dequantize_weights(weights)
    if config["model_type"] == HYBRID_TYPE:
        plain = to_hugging_face(plain)
    write_weights(folder, plain, "pt")
    copy_tokenizer(source, folder)


def main() -> None:
    """Runs the export selected on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--dequantized", action="store_true")
    parser.add_argument("--folder", type=Path, help="quantized MLX folder, for --dequantized")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    mx.set_default_device(mx.cpu)
    if arguments.dequantized:
        if arguments.folder is None:
            parser.error("--dequantized requires --folder, the quantized folder to read")
        export_dequantized(arguments.folder, arguments.out)
    else:
        if arguments.checkpoint is None or arguments.tokenizer is None:
            parser.error("specify --checkpoint and --tokenizer, or --dequantized and --folder")
        export_quantized(arguments.checkpoint, arguments.tokenizer, arguments.out)


if __name__ == "__main__":
    main()
