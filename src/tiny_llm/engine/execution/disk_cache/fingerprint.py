"""Fingerprint of models, options and program: the root of every key chain.

Covers everything that determines a page's bits, except its tokens (`keys.py`).
"""

import dataclasses
import hashlib
import importlib.metadata
import platform
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx

from .... import kernels
from ....kv_storage.disk.page_file import KEY_BYTES
from ....models import ServingModel

SCALARS = (str, bytes, int, float, range, type(None), mx.Dtype)


def fingerprint(models: Iterable[ServingModel], workers: Iterable[bytes] = ()) -> bytes:
    """Hashes the models, the versions of this package and of MLX, and the extension's binary.

    Weights and settings are hashed as loaded, so the checkpoint's files are not needed.

    Args:
        workers: fingerprints of the other ranks' shards.
    """
    extension = kernels.extension()
    arrays: list[mx.array] = []
    seen: dict[int, Any] = {}
    settings: list[Any] = [
        *(importlib.metadata.version(name) for name in ("tiny-llm", "mlx")),
        zlib.crc32(Path(extension._ext.__file__).read_bytes()),
        *workers,
        kernels.computes_on_cpu(),
        extension.instruction_set(),
        platform.machine(),
        *(text for model in models for text in _describe(model, arrays, seen)),
    ]
    mx.eval(arrays)
    with ThreadPoolExecutor() as pool:
        settings += pool.map(_checksum, arrays)
    text = "\n".join(map(str, settings))
    return hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).digest()


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
    yield getattr(value, "__qualname__", type(value).__qualname__)  # a function's name, or a type's
    members: Iterable[Any] = ()
    if isinstance(value, mx.array):
        arrays.append(value)
        members = value.shape, value.dtype
    elif isinstance(value, Mapping):
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
