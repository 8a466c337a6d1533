"""Shared helpers for Metal kernel tests: launches on the emulator or a GPU."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from tests.support import assert_close
from tiny_llm import kernels
from tiny_llm.errors import TaskNotImplemented
from tools.course.starter import first_unwritten
from tools.course.tree import EXTENSION as IN_PROJECT
from tools.course.tree import ROOT, learner_file
from tools.metal_emulator import Library, emulated_gpu, has_clang
from tools.metal_emulator.library import MAX_THREADS

EXTENSION = ROOT / IN_PROJECT

Results = tuple[mx.array, ...]

NO_CLANG = "the Metal emulator needs clang 19: apt install clang-19 libclang-rt-19-dev"

# The emulator's scheduling orders of lanes and threadgroups, and their random seeds.
ORDERS = [("forward", 1), ("reverse", 1), ("random", 1), ("random", 2)]

DTYPE_NAMES = {mx.float32: "float32", mx.float16: "float16", mx.bfloat16: "bfloat16"}
NUMPY_TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@functools.cache
def library(source: str | Path) -> Library:
    """Kernels of an extension .metal file, e.g. `matmul/matmul_tile.metal`."""
    file = learner_file(IN_PROJECT / "src" / source)
    return Library(file, include_dirs=[file.parents[2], EXTENSION])


def check_is_written(source: str | Path) -> None:
    """Raises `TaskNotImplemented` if a .metal file has an unwritten course task.

    An unwritten kernel leaves its output unchanged, which would be reported as a wrong result.
    """
    file = learner_file(IN_PROJECT / "src" / source)
    unwritten = first_unwritten(file.read_text(encoding="utf-8"), file)
    if unwritten is not None:
        raise TaskNotImplemented(f"{unwritten} [{file.name}]")


def as_bound(x: mx.array) -> np.ndarray:
    """Converts an array to a kernel argument: the same bytes in NumPy."""
    if x.dtype == mx.bfloat16:
        return np.array(x.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(x)


def as_array(x: np.ndarray) -> mx.array:
    if x.dtype == ml_dtypes.bfloat16:
        return mx.array(x.view(np.uint16)).view(mx.bfloat16)
    return mx.array(x)


def empty(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Output buffer filled with NaN, which exposes unwritten elements."""
    return np.full(shape, np.nan, NUMPY_TYPES[dtype])


def on_gpu() -> bool:
    return mx.metal.is_available() and kernels.is_built()


_loose_seed: int | None = None


@contextmanager
def loose_arithmetic(seed: int) -> Iterator[None]:
    """Context in which `run` uses the emulator's mode "loose" instead of "plain"."""
    global _loose_seed
    _loose_seed = seed
    try:
        yield
    finally:
        _loose_seed = None


def run(
    source: str | Path,
    launch: Any,
    arrays: Sequence[np.ndarray],
    mode: str = "plain",
    order: tuple[str, int] = ("forward", 1),
    outputs: int = 1,
) -> None:
    """Runs a launch of `tiny_llm_ext.metal` on arrays and params.

    The last `outputs` arrays are written in place. A real GPU ignores `order`.
    """
    check_is_written(source)
    if mode == "plain" and _loose_seed is not None:
        mode, order = "loose", (order[0], _loose_seed)
    if mode == "plain" and on_gpu():
        bound = [as_array(array) for array in arrays]
        results = kernels.extension().metal.run(
            launch, bound[:-outputs], bound[-outputs:], stream=mx.gpu
        )
        for array, result in zip(arrays[-outputs:], results, strict=True):
            np.copyto(array, as_bound(result))
        return
    if not has_clang():
        pytest.skip(NO_CLANG)
    memory = {0: launch.threadgroup_bytes} if launch.threadgroup_bytes else None
    library(source).launch(
        launch.kernel,
        [*arrays, launch.params],
        grid=launch.groups,
        threads=launch.threads,
        threadgroup_memory=memory,
        mode=mode,
        order=order[0],
        seed=order[1],
    )


def gpu_results(
    call: Callable[[Any], Results],
    mode: str = "plain",
    order: tuple[str, int] = ("forward", 1),
    max_threads: int = MAX_THREADS,
) -> Results:
    """Evaluates `call(stream)` on the GPU, or on the emulated GPU of a machine without one.

    A real GPU ignores `order` and `max_threads`, and is skipped in other modes than "plain".
    """
    if mode == "plain" and _loose_seed is not None:
        mode, order = "loose", (order[0], _loose_seed)
    if on_gpu():
        if mode != "plain":
            pytest.skip("needs a machine without a GPU")
        results = call(mx.gpu)
        mx.eval(results)
        return results
    if not has_clang():
        pytest.skip(NO_CLANG)
    with emulated_gpu(
        kernels.extension(), mode=mode, order=order[0], seed=order[1], max_threads=max_threads
    ) as gpu:
        results = call(gpu.stream())
        mx.eval(results)
        assert gpu.launches, "expected a Metal kernel to run"
    return results


def assert_equals_cpu(mode: str, call: Callable[[Any], Results], ulps: float, **how: Any) -> None:
    """Checks the outputs of `call(stream)` on the GPU (see `gpu_results`) against the CPU's."""
    pairs = zip(gpu_results(call, mode, **how), call(mx.cpu), strict=True)
    for i, (actual, expected) in enumerate(pairs):
        assert_close(actual, expected, f"output {i}", ulps)
