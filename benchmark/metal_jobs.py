"""Emulator jobs: launches of two kernels, and their summed operation counts."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from tools.metal_emulator import Library

HERE = Path(__file__).resolve().parent
EXTENSION = HERE.parent / "src" / "extensions"
MLX_HEADERS = Path(next(iter(mx.__spec__.submodule_search_locations or [mx.__file__]))).parent
MLX_HEADERS /= "include"

Size = tuple[int, int, int]


@dataclass(frozen=True)
class Step:
    """One kernel launch: library, kernel, arguments, threadgroups, threads per threadgroup."""

    library: Library
    kernel: str
    arguments: Sequence[Any] | Mapping[int, Any]
    groups: Size
    threads: Size


@dataclass(frozen=True)
class RatioLimits:
    """Upper bounds on the ratios of tiny-llm's counts to the peer kernel's."""

    device_bytes: float = 1.001
    threadgroup_bytes: float = 1.05
    instructions: float = 1.05


@dataclass(frozen=True)
class Job:
    """Comparison of tiny-llm's kernel and a peer's on the same slice of the same workload."""

    name: str
    shape: str  # dimensions of the full workload, named as in the operation's docs
    slice: str  # label of the executed slice
    times: int  # number of slices in the full workload
    limits: RatioLimits
    kernel: str
    mlx_kernel: str  # the peer's kernel
    ours: Callable[[], list[Step]] = field(repr=False)
    mlx: Callable[[], list[Step]] = field(repr=False)
    peer: str = "MLX"  # "dense" where MLX lacks the kernel


@dataclass(frozen=True)
class Totals:
    """Operation counts, summed over the launches of one kernel. Bytes are reads plus writes."""

    device_bytes: int
    unique_device_bytes: int
    threadgroup_bytes: int
    simd_operations: int
    barriers: int
    matrix_multiply_adds: int
    multiply_adds: int
    integer_operations: int
    integer_divisions: int
    conversions: int
    accesses: int

    @property
    def instructions(self) -> int:
        """Integer operations and memory accesses: a kernel's overhead."""
        return self.integer_operations + self.accesses


def run(steps: Sequence[Step]) -> Totals:
    """Runs launches in order and sums their counts."""
    counts = [
        step.library.launch(
            step.kernel, step.arguments, grid=step.groups, threads=step.threads, mode="count"
        ).counts
        for step in steps
    ]
    return Totals(
        device_bytes=sum(count.device_bytes for count in counts),
        unique_device_bytes=sum(count.unique_device_bytes for count in counts),
        threadgroup_bytes=sum(count.threadgroup_bytes for count in counts),
        simd_operations=sum(count.simd_operations for count in counts),
        barriers=sum(count.barriers for count in counts),
        matrix_multiply_adds=sum(count.simdgroup_matrix_multiply_adds for count in counts),
        multiply_adds=sum(count.multiply_adds for count in counts),
        integer_operations=sum(count.all_integer_operations for count in counts),
        integer_divisions=sum(count.integer_divisions for count in counts),
        conversions=sum(count.conversions for count in counts),
        accesses=sum(count.accesses for count in counts),
    )


@functools.cache
def our_library(source: str) -> Library:
    """Compiles an extension source, such as `matmul/matmul_tile.metal`."""
    return Library(EXTENSION / "src" / source, include_dirs=[EXTENSION])


@functools.cache
def mlx_library(name: str, **constants: int) -> Library:
    """Compiles metal/mlx_<name>.metal; `c200=1` sets function constant 200."""
    values: dict[int | str, object] = {int(key[1:]): value for key, value in constants.items()}
    source = HERE / "metal" / f"mlx_{name}.metal"
    return Library(source, include_dirs=[MLX_HEADERS], function_constants=values)


def our_step(source: str, launch: Any, arrays: Sequence[np.ndarray]) -> Step:
    """Step for a launch configured by `tiny_llm_ext.metal`; `arrays`: inputs, then outputs."""
    arguments = [*arrays, launch.params]
    return Step(our_library(source), launch.kernel, arguments, launch.groups, launch.threads)
