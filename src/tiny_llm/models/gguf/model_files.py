"""Model files: a checkpoint folder or a GGUF file, which any regular file is taken for.

Modules that need NumPy are imported for GGUF files only, to save memory.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checkpoint import layout, weights
from ..checkpoint.safe_io import ModelError, model_errors
from ..checkpoint.sharding import RankShard
from ..families.registry import read_config
from ..tokenizer import loader
from .reader import open_gguf
from .tokenizer import gguf_tokenizer


def read_model_config(path: Path) -> Mapping[str, Any]:
    """Config with the fields of `config.json`; see `layout.read_model_config`."""
    if not path.is_file():
        return layout.read_model_config(path)
    from .config import gguf_config

    with model_errors(f"{path} cannot be loaded"):
        config = gguf_config(open_gguf(path))
        read_config(config)
    return config


def check_model_files(path: Path) -> None:
    """Checks config, tokenizer and headers of the weights; see `check_checkpoint`."""
    if not path.is_file():
        layout.check_checkpoint(path)
    elif "tokenizer.ggml.tokens" not in open_gguf(path).metadata:
        raise ModelError(f"{path} has no tokenizer; convert the model again, with its tokenizer.")
    else:
        read_model_config(path)


def has_tokenizer(path: Path) -> bool:
    return path.is_file() or layout.has_tokenizer(path)


def has_weights(path: Path) -> bool:
    has_index = (path / layout.INDEX_FILE).exists()
    return path.is_file() or has_index or any(path.glob("model*.safetensors"))


def weight_bytes(path: Path) -> int:
    if path.is_file():
        return sum(tensor.nbytes for tensor in open_gguf(path).tensors.values())
    return layout.weight_bytes(path)


def read_weights(
    path: Path, config: Mapping[str, Any], rank_shard: RankShard | None = None, mtp: bool = False
) -> weights.CheckpointModel:
    """Reads weights lazily; see `read_checkpoint`."""
    if not path.is_file():
        return weights.read_checkpoint(path, config, rank_shard, mtp)
    from .weights import read_gguf

    return read_gguf(path, config, rank_shard, mtp)


def open_tokenizer(path: Path, config: Mapping[str, Any]) -> Any:
    if path.is_file():
        return gguf_tokenizer(open_gguf(path))
    return loader.open_tokenizer(path, config)
