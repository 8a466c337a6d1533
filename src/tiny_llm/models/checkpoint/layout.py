"""Checkpoint folders: required files and their validation before loading.

Only headers are read, a few kilobytes at any model size. An incomplete download or a wrong folder
becomes one clear error.
"""

from pathlib import Path
from typing import Any

from ...errors import short_repr
from ..families.registry import family_of
from .config_checks import check_config
from .safe_io import ModelError, check_file_name, read_json, resolve_file
from .safetensors_header import TensorInfo, read_header
from .tokenizer_config import read_eos_token_ids, read_tokenizer_config

INDEX_FILE = "model.safetensors.index.json"


def check_checkpoint(folder: Path) -> dict[str, Any]:
    """Checks that a folder can be loaded: config, model type, tokenizer, complete weight files.

    Args:
        folder: an MLX or Hugging Face checkpoint.

    Returns:
        The parsed `config.json`.

    Raises:
        ModelError: the first problem found.
    """
    config = read_model_config(folder)
    if not has_tokenizer(folder):
        raise ModelError(f"{folder} has no tokenizer.json (nor vocab.json); copy it from the hub.")
    read_tokenizer_config(folder)
    read_eos_token_ids(folder, config)
    read_tensor_headers(folder)
    return config


def read_model_config(folder: Path) -> dict[str, Any]:
    """Reads and checks `config.json`.

    Raises:
        ModelError: the file is unreadable, names code, or is of an unsupported family.
    """
    config = read_json(folder, "config.json")
    check_config(config, f"{folder / 'config.json'}")
    try:
        family_of(config)
    except ValueError as error:
        raise ModelError(f"{folder} holds {error}.") from error
    return config


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has tokenizer files."""
    return (folder / "tokenizer.json").exists() or (folder / "vocab.json").exists()


def weight_files(folder: Path) -> list[Path]:
    """Safetensors files of a checkpoint: the index's, or all files if there is no index.

    Raises:
        ModelError: there are no files, or a file in the index is missing.
    """
    if (folder / INDEX_FILE).exists():
        names = sorted(set(_read_weight_map(folder).values()))
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            raise ModelError(
                f"{folder} lacks {_summarize(missing)}, which {INDEX_FILE} names; "
                "download the model again."
            )
    else:
        names = sorted(file.name for file in folder.glob("model*.safetensors"))
    if not names:
        raise ModelError(f"{folder} has no model*.safetensors file; is it a model's folder?")
    return [resolve_file(folder, name) for name in names]


def read_tensor_headers(folder: Path) -> dict[str, TensorInfo]:
    """Reads the headers of all weight files: tensor name -> `TensorInfo`.

    Raises:
        ModelError: see `weight_files` and `read_header`; or a duplicate tensor.
    """
    tensors: dict[str, TensorInfo] = {}
    file_of: dict[str, str] = {}
    for file in weight_files(folder):
        for name, tensor in read_header(file).items():
            if name in tensors:
                raise ModelError(
                    f"{folder} has {short_repr(name)} in {file_of[name]} and in {file.name}; "
                    "download the model again."
                )
            tensors[name], file_of[name] = tensor, file.name
    return tensors


def weight_bytes(folder: Path) -> int:
    """Bytes of a checkpoint's weight files."""
    return sum(file.stat().st_size for file in weight_files(folder))


def _summarize(names: list[str], limit: int = 4) -> str:
    """Formats the first names and the number of remaining ones."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _read_weight_map(folder: Path) -> dict[str, str]:
    """Reads the index: tensor name -> file name; all names stay within the folder."""
    listed = read_json(folder, INDEX_FILE).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise ModelError(
            f"{folder / INDEX_FILE} has no weight_map from names of tensors to files; "
            "download it again."
        )
    for name in set(listed.values()):
        check_file_name(folder, name)
    return listed
