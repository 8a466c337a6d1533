"""GGUF headers: metadata and tensor table, validated before tensors are read.

Layout: magic, version, number of tensors, number of metadata entries; metadata (key, type, value);
tensor table (name, shape, type, offset); aligned data. A model may be split into several files, of
which the first has the metadata.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import short_repr
from ..checkpoint.safe_io import ModelError

MAGIC, VERSIONS = b"GGUF", (2, 3)
ALIGNMENT = 32  # of the data; default of `general.alignment`
SCALARS = dict(enumerate(("B", "b", "H", "h", "I", "i", "f", "?"))) | {10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
U64 = struct.Struct("<Q")


class BlockType(NamedTuple):
    """A tensor type: blocks of `size` weights, stored in `nbytes` bytes."""

    name: str
    size: int
    nbytes: int


TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    30: BlockType("BF16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    8: BlockType("Q8_0", 32, 34),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    39: BlockType("MXFP4", 32, 17),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
}
UNSUPPORTED_TYPES = (
    {10: "Q2_K", 11: "Q3_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S"}
    | {20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M"}
    | {34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4"}
)


@dataclass(frozen=True)
class GGUFTensor:
    """Entry of the tensor table; `shape` is in NumPy's order, rows first."""

    type: BlockType
    shape: tuple[int, ...]
    file: Path
    offset: int  # of the data in the file, in bytes

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) // self.type.size * self.type.nbytes


@dataclass(frozen=True)
class GGUFFile:
    """A GGUF file's header, or the merged headers of a split model."""

    path: Path
    metadata: Mapping[str, Any]  # arrays of strings as byte offsets; see `strings`
    tensors: Mapping[str, GGUFTensor]

    def get(self, name: str, default: Any = None) -> Any:
        """Metadata of the architecture, such as "block_count"."""
        return self.metadata.get(f"{self.metadata.get('general.architecture')}.{name}", default)

    def strings(self, key: str) -> list[str]:
        """Decodes an array of strings; [] if it is missing.

        Raises:
            ValueError: a string is not UTF-8, or the metadata is not an array of strings.
        """
        found = self.metadata.get(key, range(0))
        if not isinstance(found, range):
            raise ValueError(f"its {key} is not a list of strings")
        with self.path.open("rb") as file:
            file.seek(found.start)
            cursor = _Cursor(file.read(len(found)))
        return [text.decode() for text in cursor.strings()]


def open_gguf(path: Path) -> GGUFFile:
    """Reads the header of a GGUF file, or of all files of a split model.

    Raises:
        ModelError: a file is missing, truncated, of another format or version, or has a tensor of
            an unsupported type.
    """
    first = _read_header(path)
    count = first.metadata.get("split.count", 1)
    if count == 1:
        return first
    if first.metadata.get("split.no") != 0:
        raise ModelError(f"{path} is not the first file of a split model; pass the first one.")
    tensors = dict(first.tensors)
    for number in range(2, count + 1):
        name = re.sub(r"-00001-of-(\d{5})\.gguf$", rf"-{number:05}-of-\1.gguf", path.name)
        if name == path.name or not path.with_name(name).exists():
            raise ModelError(
                f"{path} is split into {count} files, of which number {number} is missing."
            )
        tensors |= _read_header(path.with_name(name)).tensors
    return GGUFFile(path, first.metadata, tensors)


def _read_header(path: Path) -> GGUFFile:
    try:
        stat = path.stat()
        return _parse(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from error
    except ModelError:
        raise
    except (struct.error, KeyError, ValueError) as error:
        reason = str(error)
        if not isinstance(error, ValueError):
            cut = isinstance(error, struct.error)
            reason = "its header is truncated" if cut else f"metadata of unknown type {error}"
        raise ModelError(
            f"{path} is not a valid GGUF file ({reason}); download it again."
        ) from error


@lru_cache(maxsize=16)  # commands read the header several times
def _parse(path: Path, size: int, _mtime: int) -> GGUFFile:
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise ModelError(f"{path} is not a GGUF file; pass a .gguf file or a model folder.")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = _Cursor(data, len(MAGIC))
            version, num_tensors, num_entries = cursor.unpack("IQQ")
            if version not in VERSIONS:
                raise ModelError(
                    f"{path} has GGUF version {version}; tiny-llm reads versions 2 and 3."
                )
            metadata = {cursor.string().decode(): cursor.value() for _ in range(num_entries)}
            table = [cursor.tensor() for _ in range(num_tensors)]
            alignment = metadata.get("general.alignment", ALIGNMENT)
            start = -(-cursor.position // alignment) * alignment
    tensors = {}
    for name, shape, kind, offset in table:
        if kind not in TYPES:
            raise ModelError(
                f"{path} has {short_repr(name)} in type {UNSUPPORTED_TYPES.get(kind, kind)}, which "
                "is not supported; download a file whose tensors are in "
                f"{', '.join(each.name for each in TYPES.values())}, such as Q4_K_M."
            )
        tensor = GGUFTensor(TYPES[kind], shape, path, start + offset)
        if not shape or shape[-1] % tensor.type.size:
            raise ValueError(f"{short_repr(name)} has shape {shape}")
        if tensor.offset + tensor.nbytes > size:
            raise ValueError(f"it has {size:,} bytes, and {short_repr(name)} ends beyond them")
        tensors[name] = tensor
    return GGUFFile(path, metadata, tensors)


class _Cursor:
    """Sequential reader of a header; struct.error at the end of the data."""

    def __init__(self, data: Any, position: int = 0):
        self._data = data
        self.position = position

    def unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{layout}", self._data, self.position)
        self.position += struct.calcsize(f"<{layout}")
        return values

    def string(self) -> bytes:
        (length,) = self.unpack("Q")
        if length > len(self._data) - self.position:
            raise struct.error
        self.position += length
        return bytes(self._data[self.position - length : self.position])

    def strings(self) -> Iterator[bytes]:
        while self.position < len(self._data):
            yield self.string()

    def value(self) -> Any:
        """Reads a metadata value; an array of strings as the range of its bytes."""
        (kind,) = self.unpack("I")
        if kind == STRING:
            return self.string().decode()
        if kind != ARRAY:
            return self.unpack(SCALARS[kind])[0]
        kind, count = self.unpack("IQ")
        if kind != STRING:
            return list(self.unpack(f"{count}{SCALARS[kind]}"))
        start = position = self.position
        for _ in range(count):  # not `self.string()`, because vocabularies are long
            position += 8 + U64.unpack_from(self._data, position)[0]
        if position > len(self._data):
            raise struct.error
        self.position = position
        return range(start, position)

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Reads a table entry: name, shape, type, offset."""
        name = self.string().decode()
        (num_dimensions,) = self.unpack("I")
        if num_dimensions > 4:
            raise ValueError(f"{short_repr(name)} has {num_dimensions} dimensions")
        shape = self.unpack(f"{num_dimensions}Q")
        return name, shape[::-1], *self.unpack("IQ")
