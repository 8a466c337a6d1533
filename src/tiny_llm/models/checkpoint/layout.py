"""Checkpoint folders: required files, tensor headers, their validation.

Weight files are checked by their headers alone, without reading tensors. A file has the header's
length (8 bytes, little-endian); the header (JSON: tensor name -> dtype, shape, and begin and end
offsets into the data); the data. The `safetensors` library is not used, because it imports NumPy.

Source: the safetensors format, https://github.com/huggingface/safetensors#format
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ...errors import short_repr, summarize
from ..families.config_fields import Fields, text_fields
from ..families.registry import family_of, read_config
from .safe_io import (
    LFS_POINTER,
    ModelError,
    is_plain_file_name,
    model_errors,
    read_json,
    reject_lfs_pointer,
    resolve_file,
)
from .tensor_shapes import check_quantization
from .tokenizer_config import read_eos_token_ids, read_tokenizer_config

DTYPE_BYTES = {  # per element
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
FLOAT_DTYPES = ("F32", "F16", "BF16")  # of unquantized weights, scales and biases
# Last name components of tensors that are floating point, unless they are quantized.
FLOAT_TENSOR_SUFFIXES = (
    *("weight", "bias", "scales", "biases", "A_log", "dt_bias", "sinks", "gate_up_proj"),
)


@dataclass(frozen=True)
class TensorInfo:
    dtype: str  # name in the safetensors format
    shape: tuple[int, ...]
    begin: int  # byte range [begin, end), relative to the end of the header
    end: int
    file: Path
    header_end: int  # file offset of the end of the header


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Reads a file's header: tensor name -> info; ModelError if it is truncated or invalid."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            reject_lfs_pointer(file, stream.read(len(LFS_POINTER)))
            stream.seek(0)
            header_end = 8 + int.from_bytes(stream.read(8), "little")
            if header_end > size:
                raise ValueError("its header is truncated")
            header = json.loads(stream.read(header_end - 8))
        header.pop("__metadata__", None)
        tensors = {}
        for name, each in header.items():
            begin, end = each["data_offsets"]
            shape = tuple(each["shape"])
            tensors[name] = TensorInfo(each["dtype"], shape, begin, end, file, header_end)
    except ModelError:
        raise
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        reason = error if type(error) is ValueError else "its header is malformed"
        raise ModelError(
            f"{file} is not a valid safetensors file ({reason}); download it again."
        ) from error
    expected = header_end + max((tensor.end for tensor in tensors.values()), default=0)
    if size != expected:
        raise ModelError(
            f"{file} is truncated or corrupt: its header implies {expected:,} bytes, but it "
            f"has {size:,}; download it again."
        )
    return tensors


def check_dtypes(tensors: Mapping[str, TensorInfo]) -> None:
    """Rejects weights with unsupported dtypes among a checkpoint's tensors.

    A layer's `weight` is floating point, or U32 if the layer has `scales`. `scales` and `biases`
    share one floating-point dtype; scales without biases may be U8 (mxfp4, mxfp8, nvfp4).
    """
    for name, tensor in tensors.items():
        path, _, suffix = name.rpartition(".")
        scales = tensors.get(f"{path}.scales")
        allowed: tuple[str, ...] = FLOAT_DTYPES
        if suffix == "weight" and scales is not None:
            allowed = ("U32",)
        elif suffix == "biases" and scales is not None and scales.dtype in FLOAT_DTYPES:
            allowed = (scales.dtype,)
        elif suffix == "scales" and f"{path}.weight" in tensors and f"{path}.biases" not in tensors:
            allowed = (*FLOAT_DTYPES, "U8")
        elif suffix not in FLOAT_TENSOR_SUFFIXES:
            continue
        if tensor.dtype not in allowed:
            raise ValueError(
                f"{short_repr(name)} has dtype {tensor.dtype}, expected {' or '.join(allowed)}"
            )


# Names a Python file that replaces the model. `auto_map` also names code, but for `transformers`,
# where it is optional for the families that tiny-llm supports.
CODE_FIELD = "model_file"

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


def reject_code(fields: Mapping[str, Any], where: str) -> None:
    if fields.get(CODE_FIELD):
        raise ModelError(
            f"{where} has {CODE_FIELD} {short_repr(fields[CODE_FIELD])}, which refers to code; "
            f"tiny-llm never runs a model's code: remove {CODE_FIELD} if the model works without "
            "it."
        )


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
