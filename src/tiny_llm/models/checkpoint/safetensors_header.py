"""Safetensors headers, read without tensors.

Layout: header length (8 bytes, little-endian); header (JSON: tensor name -> dtype, shape, and begin
and end offsets into the data); data. The `safetensors` library is not used, because it imports
NumPy.

Source: the safetensors format, https://github.com/huggingface/safetensors#format
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import short_repr
from .safe_io import LFS_POINTER, ModelError, reject_lfs_pointer

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
