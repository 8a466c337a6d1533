"""What a folder must hold to be a checkpoint, checked before anything is loaded.

The checks read headers only: a few kilobytes, however large the weights are. They exist to turn
a half-finished download or a wrong folder into one sentence.
"""

import json
import struct
from pathlib import Path
from typing import Any

from ..errors import UserError
from .families.registry import family_of


class ModelError(UserError):
    """A model that cannot be found, downloaded or loaded, with the reason."""


def check_checkpoint(folder: Path) -> dict[str, Any]:
    """Checks that a folder can be loaded: config, model type, tokenizer, every shard complete.

    Args:
        folder: an MLX or Hugging Face checkpoint.

    Returns:
        The parsed `config.json`.

    Raises:
        ModelError: the first thing found wrong.
    """
    config = read_json(folder, "config.json")
    try:
        family_of(config)
    except ValueError as error:
        raise ModelError(f"{folder} holds {error}.") from error
    if not has_tokenizer(folder):
        raise ModelError(f"{folder} has no tokenizer.json (nor vocab.json); copy it from the hub.")
    for shard in weight_files(folder):
        _check_safetensors(shard)
    return config


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has the files of a tokenizer."""
    return (folder / "tokenizer.json").exists() or (folder / "vocab.json").exists()


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint: those that its index names; all, if it has no index.

    Raises:
        ModelError: there are none, or one that the index names is missing.
    """
    if (folder / "model.safetensors.index.json").exists():
        index = read_json(folder, "model.safetensors.index.json")
        names = sorted(set(index.get("weight_map", {}).values()))
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            raise ModelError(
                f"{folder} lacks {', '.join(missing)}, which model.safetensors.index.json names; "
                "download the model again."
            )
        files = [folder / name for name in names]
    else:
        files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise ModelError(f"{folder} has no model*.safetensors file; is it a model's folder?")
    return files


def weight_bytes(folder: Path) -> int:
    """The size of a checkpoint's weights on disk, in bytes."""
    return sum(file.stat().st_size for file in weight_files(folder))


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object that a checkpoint must have.

    Raises:
        ModelError: the file is missing, or holds something else.
    """
    if not (folder / name).exists():
        raise ModelError(f"{folder} has no {name}; is it a model's folder?")
    try:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{folder / name} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{folder / name} does not hold a JSON object.")
    return content


def _check_safetensors(file: Path) -> None:
    """Compares a file's size with what its header says it holds.

    Layout: 8 bytes of header length (little-endian), the header (JSON: a tensor's name -> dtype,
    shape and its two offsets into what follows), then the tensors, nothing after.

    Source: the safetensors format, https://github.com/huggingface/safetensors#format
    """
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            (header_size,) = struct.unpack("<Q", stream.read(8))
            if header_size > size - 8:
                raise ValueError("its header is cut off")
            header = json.loads(stream.read(header_size))
        ends = [
            entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"
        ]
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error}.") from error
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{file} is not a valid safetensors file ({error}); download it again."
        ) from error
    expected = 8 + header_size + max(ends, default=0)
    if size != expected:
        raise ModelError(
            f"{file} is truncated or corrupt: its header promises {expected:,} bytes, it has "
            f"{size:,}; download it again."
        )
