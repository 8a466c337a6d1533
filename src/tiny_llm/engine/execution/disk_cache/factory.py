"""Builds the disk cache from `LLM`'s arguments; fingerprint of models and program."""

import dataclasses
import hashlib
import importlib.metadata
import logging
import os
import platform
import time
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx

from .... import kernels
from ....errors import UserError
from ....kv_storage.disk.store import HEADER_BYTES, KEY_BYTES, PageStore
from ....models import ServingModel
from ...scheduling.config import SchedulerConfig
from ...scheduling.scheduler import Scheduler
from ..paged_model import ROW_KINDS, PagedModel, Span
from .cache import DiskCache

log = logging.getLogger("tiny_llm.engine")

DEFAULT_MAX_BYTES = 10**10
SCALARS = (str, bytes, int, float, range, type(None), mx.Dtype)  # hashed by their `repr`


def make_disk_cache(
    directory: str | os.PathLike[str] | None,
    max_bytes: float | None,
    scheduler: Scheduler,
    models: Sequence[PagedModel],
) -> DiskCache | None:
    """Opens the disk cache; None without a directory, with an unusable one, or with a slow disk."""
    if directory is None:
        return None
    max_bytes = max_bytes or DEFAULT_MAX_BYTES
    row_bytes = {kind: sum(model.row_bytes(kind) for model in models) for kind in ROW_KINDS}
    block_bytes = row_bytes["page"] * max(group.num_pages for group in scheduler.config.kv_groups)
    num_bytes = HEADER_BYTES + max(block_bytes, row_bytes["state"])
    if max_bytes < num_bytes:
        raise UserError(
            f"prefix_cache_disk_bytes must be at least {num_bytes} (a page of "
            f"{scheduler.config.page_size} tokens or a recurrent state), got {max_bytes}."
        )
    workers = [other for model in models for other in model.worker_fingerprints()]
    root = fingerprint((model.model for model in models), workers)
    try:
        store = PageStore(Path(os.path.expanduser(directory)), int(max_bytes))
        read_seconds = store.read_seconds(row_bytes["page"] * scheduler.config.block_pages)
    except OSError as error:
        reason = f"cannot use {directory} ({error})"
    else:
        page_seconds = _page_seconds(models, scheduler.config)
        if read_seconds < page_seconds:
            return DiskCache(store, scheduler, models, row_bytes, root)
        reason = (
            f"reading a page from {directory} takes {read_seconds:.2g} s, computing it "
            f"{page_seconds:.2g} s"
        )
    log.warning("disk prefix cache: %s; continuing without it", reason)
    return None


def _page_seconds(models: Sequence[PagedModel], config: SchedulerConfig) -> float:
    """Measures the time to compute a page; overwrites the first pages."""
    max_blocks = config.num_pages // config.block_pages
    num_blocks = max(1, min(config.max_num_batched_tokens // config.page_size, max_blocks, 2))
    num_tokens = min(num_blocks * config.page_size, config.max_num_batched_tokens)
    span = Span([0] * num_tokens, 0, array("i", range(num_blocks * config.block_pages)))
    seconds = 0.0
    for model in models:
        model.logits([span], [0])  # warm-up
        started = time.perf_counter()
        model.logits([span], [0])
        seconds += time.perf_counter() - started
    return seconds / num_tokens * config.page_size


def fingerprint(models: Iterable[ServingModel], workers: Iterable[bytes] = ()) -> bytes:
    """Hashes models, options and program: the root of every key chain (`cache.py`).

    Covers everything that determines a page's bits, except its tokens: the models, the versions of
    this package and of MLX, and the extension's binary. Weights and settings are hashed as loaded,
    so the checkpoint's files are not needed.

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
