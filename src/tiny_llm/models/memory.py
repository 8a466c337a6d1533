"""Memory of the system and of a model; release of free memory.

Two kinds of free memory stay with the process: buffers that MLX caches for reuse, and holes that
requests of varying lengths leave in the heap. With the demo model, holes take up to a quarter of
the process's memory after a few thousand requests.

A model's sizes are those of the lazy arrays that loading would evaluate, so they take account of
sharding and of repacking for the CPU kernels.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from .. import kernels
from ..kv_storage.int8_rows import KvCacheDtype
from ..kv_storage.paged_storage import LayerKv
from .checkpoint.dummy import random_bytes, random_checkpoint
from .checkpoint.safe_io import model_errors
from .checkpoint.sharding import RankShard
from .families.config import DecoderConfig, layers_kv
from .families.gated_delta_net import state_shape
from .families.linear import activation_dtype
from .families.registry import config_of, read_config
from .hub import has_weights, read_model_config, read_weights

TRIM_INTERVAL = 256  # requests between heap trims

# Memory is short if less than min(1/16 of the total, 2 GiB) is available, or if less than 1/4 is
# available and some task was stalled on memory for at least 10% of the last 10 seconds (PSI, the
# kernel's pressure stall information). Stalls alone may be caused by other control groups.
SHORT_DIVISOR, MAX_SHORT_BYTES = 16, 2**31
STALL_DIVISOR, STALL_PERCENT = 4, 10.0
PRESSURE_WARNING = 2  # macOS memory pressure level; 1 is normal, 4 critical


def total_memory(root: Path = Path("/")) -> int:
    """Bytes this process may use: physical memory, or a lower cgroup limit."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for folder in _memory_cgroups(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # the file contains "max" if there is no limit
                limits.append(int((folder / name).read_text()))
    return min(limits)


def available_memory(root: Path = Path("/")) -> int:
    """Estimated bytes this process can still allocate without swapping.

    On Linux, this is the minimum of `MemAvailable` and the control groups' headroom, counting file
    caches as free; on macOS, it is based on the system-wide free percentage, as shown by
    `memory_pressure`. With a GPU, it is at most the GPU's recommended working set minus MLX's
    active memory.
    """
    limits = [total_memory(root)]
    if sys.platform == "darwin":
        limits.append(limits[0] * _sysctl("kern.memorystatus_level", 100) // 100)
    limits += [1024 * kilobytes for kilobytes in _numbers(root / "proc/meminfo", "MemAvailable:")]
    limits += _cgroup_headroom(root, limits[0])
    if not kernels.computes_on_cpu():
        resident = mx.device_info().get("max_recommended_working_set_size")
        if isinstance(resident, int):
            limits.append(resident - mx.get_active_memory())
    return max(0, min(limits))


def is_memory_short(root: Path = Path("/")) -> bool:
    """Whether system memory is nearly exhausted; takes less than a millisecond."""
    if sys.platform == "darwin":
        return _sysctl("kern.memorystatus_vm_pressure_level", 1) >= PRESSURE_WARNING
    total, available = total_memory(root), available_memory(root)
    if available < min(total // SHORT_DIVISOR, MAX_SHORT_BYTES):
        return True
    return available < total // STALL_DIVISOR and _stall_percent(root) >= STALL_PERCENT


def _cgroup_headroom(root: Path, total: int) -> Iterator[int]:
    for folder in _memory_cgroups(root):
        for limit_file, usage_file, prefix in (
            ("memory.max", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):
            with suppress(OSError, ValueError):
                limit = int((folder / limit_file).read_text())
                if limit <= total:  # a higher limit cannot be reached, and usage is slow to read
                    names = f"{prefix}inactive_file", f"{prefix}active_file"
                    cached = sum(_numbers(folder / "memory.stat", *names))
                    yield limit - int((folder / usage_file).read_text()) + cached


def _stall_percent(root: Path) -> float:
    """Percentage of the last 10 s with a task stalled on memory; 0 if unknown."""
    percents = [0.0]
    groups = [folder / "memory.pressure" for folder in _memory_cgroups(root)]
    for file in (root / "proc/pressure/memory", *groups):
        with suppress(OSError, ValueError, IndexError):  # first line: some avg10=0.00 avg60=0.00 …
            percents.append(float(file.read_text().split()[1].removeprefix("avg10=")))
    return max(percents)


def _memory_cgroups(root: Path) -> Iterator[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not on Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):  # cgroup v2 and v1
            mount = root / "sys/fs/cgroup" / controllers
            group = mount / path.lstrip("/")
            for folder in (group, *group.parents):
                yield folder
                if folder == mount:
                    break


def _numbers(file: Path, *names: str) -> list[int]:
    """Values in lines "name value …", for `names`; [] if the file is unreadable."""
    with suppress(OSError, ValueError):
        fields = map(str.split, file.read_text().splitlines())
        return [int(words[1]) for words in fields if words and words[0] in names]
    return []


def _sysctl(name: str, default: int) -> int:
    value, size = ctypes.c_int32(), ctypes.c_size_t(4)
    sysctl = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    failed = sysctl is None or sysctl(
        name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
    )
    return default if failed else value.value


def trim_heap() -> None:
    """Returns free heap pages to the system (takes 2 ms); a no-op without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def release_free_memory() -> None:
    mx.clear_cache()
    trim_heap()


@dataclass(frozen=True)
class ModelSize:
    weight_bytes: int
    config: DecoderConfig  # of a rank
    state_bytes: int  # bytes per recurrent-state slot, over all layers; 0 without recurrent state
    max_seq_len: int
    dtype: mx.Dtype
    kv_cache_dtype: KvCacheDtype = "auto"
    num_ranks: int = 1

    @property
    def kv_layers(self) -> list[LayerKv]:
        return layers_kv(self.config, self.kv_cache_dtype)

    @property
    def kv_element_bytes(self) -> int:
        return self.num_ranks * (1 if self.kv_cache_dtype == "int8" else self.dtype.size)

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * sum(layer.size for layer in self.kv_layers) * self.kv_element_bytes


def model_size(folder: Path, num_ranks: int = 1, load_format: str = "auto") -> ModelSize:
    """Computes a checkpoint's memory sizes, summed over ranks; ModelError if it cannot be loaded.

    Without weight files, or if `load_format` is "dummy", `config.json` determines the shapes.
    """
    config = read_model_config(folder)
    is_dummy = load_format == "dummy" or not has_weights(folder)
    with model_errors(f"the model in {folder} cannot be loaded"):
        if is_dummy:
            random_bytes(config)  # raises ValueError for invalid shapes
        shards: list[RankShard | None] = [None]
        if num_ranks > 1:
            full = read_config(config)
            shards = [RankShard(full, rank, num_ranks) for rank in range(num_ranks)]
        read = (
            partial(random_checkpoint, config)
            if is_dummy
            else partial(read_weights, folder, config)
        )
        sizes = [size_of_tree(read(rank_shard=shard)) for shard in shards]
    totals = {
        name: sum(getattr(each, name) for each in sizes) for name in ("weight_bytes", "state_bytes")
    }
    return replace(sizes[0], **totals, num_ranks=num_ranks)


def size_of_tree(model: Any) -> ModelSize:
    """Computes memory sizes from a loaded model's arrays, which may be lazy."""
    config, parts = config_of(model.args), model.model
    arrays: Any = tree_flatten(model)
    # mlx_lm's modules also contain functions.
    total = sum(array.nbytes for _, array in arrays if isinstance(array, mx.array))
    dtype = activation_dtype(parts, config.exceeds_float16)
    state_bytes = 0
    if config.delta_net is not None:
        state_bytes = len(config.delta_net.layers) * state_shape(config.delta_net, dtype).nbytes
    return ModelSize(total, config, state_bytes, config.max_position_embeddings, dtype)
