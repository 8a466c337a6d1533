"""Random LoRA adapters in the formats of `mlx_lm.lora` and PEFT."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from tiny_llm.models.checkpoint.tensor_shapes import matrix_shapes
from tiny_llm.models.families.registry import read_config


def random_adapter(
    config: Mapping[str, Any],
    rank: int,
    seed: int = 0,
    last: int = 100,
    size: float = 1.0,
    only: Sequence[str] = ("",),
) -> dict[str, mx.array]:
    """Random float32 tensors of an adapter, with `mlx_lm`'s names and layout.

    Args:
        last: number of adapted blocks, counted from the last block.
        size: standard deviation of the weight update at scale 1.
        only: suffixes of the adapted layers' paths.
    """
    key, tensors, model = mx.random.key(seed), {}, read_config(config)
    for path, (O, I, *_) in matrix_shapes(model):
        is_supported = path.startswith("model.layers.") and "switch_mlp" not in path
        is_last = is_supported and int(path.split(".")[2]) >= model.num_hidden_layers - last
        if is_last and path.endswith(tuple(only)):
            key, key_a, key_b = mx.random.split(key, 3)
            tensors[f"{path}.lora_a"] = mx.random.normal((I, rank), key=key_a) * I**-0.5
            tensors[f"{path}.lora_b"] = mx.random.normal((rank, O), key=key_b) * size * rank**-0.5
    return tensors


def write_adapter(
    folder: Path,
    tensors: Mapping[str, mx.array],
    rank: int,
    scale: float = 2.0,
    num_layers: int = -1,
    **changes: Any,
) -> Path:
    """Writes an `mlx_lm` adapter folder; `changes` overrides config fields."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = sorted({name.split(".", 3)[-1].rpartition(".")[0] for name in tensors})
    config = {
        "fine_tune_type": "lora",
        "num_layers": num_layers,
        "lora_parameters": {"rank": rank, "scale": scale, "dropout": 0.0, "keys": keys},
        "model": "the/model",
        "iters": 1000,
        **changes,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "adapters.safetensors"), dict(tensors))
    return folder


def write_peft_adapter(
    folder: Path, tensors: Mapping[str, mx.array], rank: int, alpha: float, **changes: Any
) -> Path:
    """Writes the tensors of `random_adapter` with PEFT's names and layout."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", **changes}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    renamed = {
        f"base_model.model.{name[:-1]}{name[-1].upper()}.weight": mx.contiguous(array.T)
        for name, array in tensors.items()
    }
    mx.save_safetensors(str(folder / "adapter_model.safetensors"), renamed)
    return folder


def write_adapters(
    folder: Path, config: Mapping[str, Any], ranks: Mapping[str, int], size: float
) -> dict[str, Path]:
    """Writes a random adapter for each entry of `ranks`; returns their folders."""
    return {
        name: write_adapter(folder / name, random_adapter(config, rank, seed=rank, size=size), rank)
        for name, rank in ranks.items()
    }
