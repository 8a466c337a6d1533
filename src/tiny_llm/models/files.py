"""What a folder must hold to be a Qwen3 checkpoint, checked before anything is loaded.

The checks read headers only: a few kilobytes, however large the weights are. They exist to turn
a half-finished download or a wrong folder into one sentence.
"""

from pathlib import Path
from typing import Any

from ..errors import shortened
from .config_checks import check_config
from .families.registry import family_of
from .folder import ModelError, check_plain_name, file_in, read_json
from .safetensors_header import StoredTensor, read_header
from .tokenizer_settings import find_eos_token_ids, read_settings

INDEX = "model.safetensors.index.json"


def check_checkpoint(folder: Path) -> dict[str, Any]:
    """Checks that a folder can be loaded: config, model type, tokenizer, every shard complete.

    Args:
        folder: an MLX or Hugging Face checkpoint.

    Returns:
        The parsed `config.json`.

    Raises:
        ModelError: the first thing found wrong.
    """
    config = read_model_config(folder)
    if not has_tokenizer(folder):
        raise ModelError(f"{folder} has no tokenizer.json (nor vocab.json); copy it from the hub.")
    read_settings(folder)
    find_eos_token_ids(folder, config)
    stored_tensors(folder)
    return config


def read_model_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a checkpoint that a family of ours can be.

    Raises:
        ModelError: it cannot be read, names code, or is another family's.
    """
    config = read_json(folder, "config.json")
    check_config(config, f"{folder / 'config.json'}")
    try:
        family_of(config)
    except ValueError as error:
        raise ModelError(f"{folder} holds {error}.") from error
    return config


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has the files of a tokenizer."""
    return (folder / "tokenizer.json").exists() or (folder / "vocab.json").exists()


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint: those that its index names; all, if it has no index.

    Raises:
        ModelError: there are none, or one that the index names is missing.
    """
    if (folder / INDEX).exists():
        names = sorted(set(_index(folder).values()))
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            raise ModelError(
                f"{folder} lacks {_some(missing)}, which {INDEX} names; download the model again."
            )
    else:
        names = sorted(file.name for file in folder.glob("model*.safetensors"))
    if not names:
        raise ModelError(f"{folder} has no model*.safetensors file; is it a model's folder?")
    return [file_in(folder, name) for name in names]


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """What the headers of a checkpoint's files say of its tensors, by name.

    Raises:
        ModelError: see `weight_files` and `read_header`; a tensor is there twice.
    """
    tensors: dict[str, StoredTensor] = {}
    file_of: dict[str, str] = {}
    for file in weight_files(folder):
        for name, tensor in read_header(file).items():
            if name in tensors:
                raise ModelError(
                    f"{folder} has {shortened(name)} in {file_of[name]} and in {file.name}; "
                    "download the model again."
                )
            tensors[name], file_of[name] = tensor, file.name
    return tensors


def weight_bytes(folder: Path) -> int:
    """The size of a checkpoint's weights on disk, in bytes."""
    return sum(file.stat().st_size for file in weight_files(folder))


def _some(names: list[str], most: int = 4) -> str:
    """Names for a sentence, the first of many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _index(folder: Path) -> dict[str, str]:
    """The file of each tensor, by the tensor's name; each in the folder if it exists."""
    listed = read_json(folder, INDEX).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise ModelError(
            f"{folder / INDEX} has no weight_map from names of tensors to files; download it again."
        )
    for name in set(listed.values()):
        check_plain_name(folder, name)
    return listed
