"""Safetensors headers, validated before any tensor is read.

Layout: header length (8 bytes, little-endian); header (JSON: tensor name -> dtype, shape, and begin
and end offsets into the data); data (contiguous tensors).

Source: the safetensors format, https://github.com/huggingface/safetensors#format
"""

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import short_repr
from .safe_io import MAX_JSON_BYTES, ModelError, open_regular, parse_json

DTYPE_BYTES = {  # per element
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
FLOAT_DTYPES = ("F32", "F16", "BF16")  # of unquantized weights, scales and biases
# Last name components of tensors that are floating point, unless they are quantized.
FLOAT_TENSOR_SUFFIXES = ("weight", "bias", "scales", "biases", "A_log", "dt_bias", "gate_up_proj")
MAX_NDIM = 8


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's entry in a file header."""

    dtype: str  # name in the safetensors format
    shape: tuple[int, ...]
    begin: int  # byte range [begin, end), relative to the end of the header
    end: int
    file: Path
    header_end: int  # file offset of the end of the header


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Reads a file's header, at most `MAX_JSON_BYTES`: tensor name -> info.

    Raises:
        ModelError: the file is truncated or not a safetensors file, tensors overlap or leave gaps,
            or a tensor's shape, dtype and size are inconsistent.
    """
    try:
        with open_regular(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size < 8:  # also rejects endless files in /proc, whose size is 0
                raise ValueError("it has fewer than 8 bytes")
            (header_size,) = struct.unpack("<Q", stream.read(8))
            if header_size > size - 8:
                raise ValueError("its header is truncated")
            if header_size > MAX_JSON_BYTES:
                raise ValueError(
                    f"its header has {header_size:,} bytes, expected at most {MAX_JSON_BYTES:,}"
                )
            text = stream.read(header_size).decode("utf-8")
        tensors = _tensors(parse_json(text), file, 8 + header_size)
    except ModelError:
        raise
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{file} is not a valid safetensors file (its header is not UTF-8); download it again."
        ) from error
    except ValueError as error:
        raise ModelError(
            f"{file} is not a valid safetensors file ({error}); download it again."
        ) from error
    expected = 8 + header_size + max((tensor.end for tensor in tensors.values()), default=0)
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


def _tensors(header: Any, file: Path, header_end: int) -> dict[str, TensorInfo]:
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("__metadata__ in its header does not map strings to strings")
    tensors = {name: _tensor(name, entry, file, header_end) for name, entry in header.items()}
    _check_offsets(tensors)
    return tensors


def _tensor(name: str, entry: Any, file: Path, header_end: int) -> TensorInfo:
    what = short_repr(name)
    if not name.isprintable():
        raise ValueError(f"tensor name {what} has unprintable characters")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{what} must have exactly the keys dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise ValueError(f"{what} has unknown dtype {short_repr(dtype)}")
    if not _are_sizes(shape) or len(shape) > MAX_NDIM:
        raise ValueError(
            f"{what} has shape {short_repr(shape)}, expected at most {MAX_NDIM} non-negative "
            "integers"
        )
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(
            f"{what} has data_offsets {short_repr(offsets)}, expected two non-negative integers"
        )
    begin, end = offsets
    needed = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != needed:
        raise ValueError(
            f"{what} needs {short_repr(needed)} bytes, but its data_offsets span "
            f"{short_repr(end - begin)}"
        )
    return TensorInfo(dtype, tuple(shape), begin, end, file, header_end)


def _check_offsets(tensors: Mapping[str, TensorInfo]) -> None:
    """Checks that tensors are contiguous from offset 0, without overlaps or gaps."""
    offset, previous = 0, "the header"
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != offset:
            what = "overlaps" if tensor.begin < offset else "leaves a gap after"
            raise ValueError(f"{short_repr(name)} {what} {short_repr(previous)}")
        offset, previous = tensor.end, name


def _are_sizes(numbers: Any) -> bool:
    """Whether a value is a list of non-negative integers."""
    return isinstance(numbers, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers
    )
