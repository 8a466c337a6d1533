"""Checkpoint folders: required files and their validation before loading.

Weight files are checked by their headers alone, without reading tensors.
"""

from fnmatch import fnmatch
from pathlib import Path

from ...errors import short_repr, summarize
from ..families.config_fields import Fields, text_fields
from ..families.registry import family_of, read_config
from .config_checks import reject_code
from .quantization import check_quantization
from .safe_io import ModelError, is_plain_file_name, model_errors, read_json, resolve_file
from .safetensors_header import TensorInfo, read_header
from .tokenizer_config import read_eos_token_ids, read_tokenizer_config

WEIGHT_FILES = "model*.safetensors"  # the files that mlx_lm reads and downloads, too
COMPLETE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"


def check_checkpoint(folder: Path) -> None:
    config = read_model_config(folder)
    if not has_tokenizer(folder):
        raise ModelError(f"{folder} has no tokenizer.json or vocab.json; copy it from the hub.")
    read_tokenizer_config(folder)
    read_eos_token_ids(folder, config)
    read_tensor_headers(folder)


def read_model_config(folder: Path) -> Fields:
    """Reads and checks `config.json`; returns the language model's fields.

    Raises:
        ModelError: the file is invalid or refers to code, or no family supports its fields.
    """
    config, where = read_json(folder, "config.json"), str(folder / "config.json")
    with model_errors(f"the model in {folder} cannot be loaded"):
        family_of(config)  # for another family, the other errors would be no help
        reject_code(config, where)
        config = dict(text_fields(config))
        reject_code(config, where)
        if (folder / "hf_quant_config.json").exists():
            config.setdefault("quantization_config", {"quant_method": "modelopt"})
        check_quantization(config)
        read_config(config)
    return config


def has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer.json").exists() or (folder / "vocab.json").exists()


def weight_files(folder: Path) -> list[Path]:
    """A checkpoint's `model*.safetensors` files: those in its index, or all without one.

    If the index is stale, `model.safetensors` alone. Other files, such as
    `consolidated.safetensors`, hold copies of the weights or other models.

    Raises:
        ModelError: there are no files, or a file in the index is missing.
    """
    names = sorted(file.name for file in folder.glob(WEIGHT_FILES))
    if has_stale_index(folder):
        names = [COMPLETE_FILE]
    elif (folder / INDEX_FILE).exists():
        listed = _indexed_files(folder)
        missing = sorted(listed - set(names))
        if missing:
            raise ModelError(
                f"{folder} lacks {summarize(missing)}, listed in {INDEX_FILE}; "
                "download the model again."
            )
        names = sorted(listed) or names
    if not names:
        raise ModelError(f"{folder} has no model*.safetensors file; it is not a model folder.")
    return [resolve_file(folder, name) for name in names]


def has_stale_index(folder: Path) -> bool:
    """Whether the index lists only files other than `model.safetensors`, which exists."""
    if not (folder / INDEX_FILE).exists() or not (folder / COMPLETE_FILE).exists():
        return False
    listed = _indexed_files(folder)
    return bool(listed) and COMPLETE_FILE not in listed


def read_tensor_headers(folder: Path) -> dict[str, TensorInfo]:
    """Reads the headers of all weight files: tensor name -> `TensorInfo`."""
    tensors: dict[str, TensorInfo] = {}
    file_of: dict[str, str] = {}
    for file in weight_files(folder):
        for name, tensor in read_header(file).items():
            if name in tensors:
                raise ModelError(
                    f"{folder} has {short_repr(name)} in both {file_of[name]} and {file.name}; "
                    "download the model again."
                )
            tensors[name], file_of[name] = tensor, file.name
    return tensors


def weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in weight_files(folder))


def _indexed_files(folder: Path) -> set[str]:
    """Names of the weight files in the index; others, such as sidecars, are ignored."""
    listed = read_json(folder, INDEX_FILE).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise ModelError(
            f"{folder / INDEX_FILE} has no weight_map from tensor names to file names; "
            "download it again."
        )
    return {x for x in listed.values() if fnmatch(x, WEIGHT_FILES) and is_plain_file_name(x)}
