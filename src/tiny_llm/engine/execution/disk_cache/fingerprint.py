"""Fingerprint of models, options and program: the root of every key chain.

Covers everything that determines a page's bits, except its tokens (`keys.py`).
"""

import dataclasses
import hashlib
import importlib.metadata
import platform
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx

from .... import kernels
from ....kv_storage.disk.page_file import KEY_BYTES
from ....models import ServingModel

VERSION = 1  # increment when the on-disk layout of pages or states changes
PACKAGE = Path(__file__).resolve().parents[3]
SCALARS = (str, bytes, int, float, range, type(None), mx.Dtype)


def fingerprint(models: Iterable[ServingModel], workers: Iterable[bytes] = ()) -> bytes:
    """Hashes the models, the kernels and the program's source code.

    Weights and settings are hashed as loaded, so the checkpoint's files are not needed.

    Args:
        workers: fingerprints of the other ranks' shards.
    """
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    extension = Path(kernels.extension().__path__[0])
    program = [*sorted(PACKAGE.rglob("*.py")), *sorted(extension.glob("_ext.*"))]
    for setting in (
        VERSION,
        importlib.metadata.version("mlx"),
        *(zlib.crc32(file.read_bytes()) for file in program),
        *workers,
        kernels.computes_on_cpu(),
        kernels.extension().instruction_set(),
        platform.machine(),
    ):
        digest.update(f"{setting}\n".encode())
    arrays: list[mx.array] = []
    seen: dict[int, Any] = {}
    for model in models:
        for text in _describe(model, arrays, seen):
            digest.update(f"{text}\n".encode())
    mx.eval(arrays)
    with ThreadPoolExecutor() as pool:
        for checksum in pool.map(_checksum, arrays):
            digest.update(f"{checksum}\n".encode())
    return digest.digest()


def _checksum(values: mx.array) -> int:
    memory = memoryview(mx.view(values.reshape(-1), mx.uint8))  # type: ignore[arg-type]
    return zlib.crc32(memory)


def _describe(value: Any, arrays: list[mx.array], seen: dict[int, Any]) -> Iterator[str]:
    """Describes an object and, recursively, its members; collects its arrays."""
    if isinstance(value, SCALARS):
        yield repr(value)
        return
    if id(value) in seen:
        yield "seen"
        return
    seen[id(value)] = value  # kept alive, so that the id stays unique
    if isinstance(value, mx.array):
        yield f"array {value.shape} {value.dtype}"
        arrays.append(value)
        return
    yield type(value).__qualname__
    if isinstance(value, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        yield value.__qualname__
        return
    members: Iterable[Any] = ()
    if isinstance(value, Mapping):
        members = value.items()
    elif isinstance(value, Set):
        members = sorted(value, key=repr)
    elif isinstance(value, Sequence):
        members = value
    elif dataclasses.is_dataclass(value):
        members = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif hasattr(value, "__dict__"):
        members = vars(value).items()
    for member in members:
        yield from _describe(member, arrays, seen)
