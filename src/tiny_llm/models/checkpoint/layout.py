"""Checkpoint folders: required files and their validation before loading.

Weight files are checked by their headers alone, without reading tensors.
"""

from pathlib import Path

from ...errors import short_repr, summarize
from ..families.config_fields import Fields, text_fields
from ..families.registry import read_config
from .config_checks import reject_code
from .quantization import check_quantization
from .safe_io import ModelError, check_file_name, model_errors, read_json, resolve_file
from .safetensors_header import TensorInfo, read_header
from .tokenizer_config import read_eos_token_ids, read_tokenizer_config

INDEX_FILE = "model.safetensors.index.json"
MAX_TENSORS = 200_000  # a 4-bit model with 94 layers of 128 experts each has only 110,000


def check_checkpoint(folder: Path) -> None:
    """Checks config, tokenizer and weight headers; see `read_model_config`."""
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
    reject_code(config, where)
    with model_errors(f"the model in {folder} cannot be loaded"):
        config = dict(text_fields(config))
        reject_code(config, where)
        check_quantization(config)
        read_config(config)
    return config


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has tokenizer files."""
    return (folder / "tokenizer.json").exists() or (folder / "vocab.json").exists()


def weight_files(folder: Path) -> list[Path]:
    """A checkpoint's safetensors files, from its index if it has one.

    Raises:
        ModelError: there are no files, or a file in the index is missing.
    """
    if (folder / INDEX_FILE).exists():
        names = sorted(set(_read_weight_map(folder).values()))
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            raise ModelError(
                f"{folder} lacks {summarize(missing)}, listed in {INDEX_FILE}; "
                "download the model again."
            )
    else:
        names = sorted(file.name for file in folder.glob("model*.safetensors"))
    if not names:
        raise ModelError(f"{folder} has no model*.safetensors file; it is not a model folder.")
    return [resolve_file(folder, name) for name in names]


def read_tensor_headers(folder: Path) -> dict[str, TensorInfo]:
    """Reads the headers of all weight files: tensor name -> `TensorInfo`.

    Raises:
        ModelError: a tensor occurs in two files; see also `weight_files` and `read_header`.
    """
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
        if len(tensors) > MAX_TENSORS:
            raise ModelError(
                f"{folder} has more than {MAX_TENSORS:,} tensors, the limit for any model; "
                "download it again."
            )
    return tensors


def weight_bytes(folder: Path) -> int:
    """Total size of a checkpoint's weight files in bytes."""
    return sum(file.stat().st_size for file in weight_files(folder))


def _read_weight_map(folder: Path) -> dict[str, str]:
    """Reads the index: tensor name -> name of a file within the folder."""
    listed = read_json(folder, INDEX_FILE).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise ModelError(
            f"{folder / INDEX_FILE} has no weight_map from tensor names to file names; "
            "download it again."
        )
    for name in set(listed.values()):
        check_file_name(folder, name)
    return listed
