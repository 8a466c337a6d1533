"""Shared helpers for tests of `matmul` and `quantized_matmul` kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.support import as_numpy, describe_mismatches, random
from tiny_llm import kernels
from tools.metal_emulator import has_clang

from .support import (
    DTYPE_NAMES,
    NO_CLANG,
    NUMPY_TYPES,
    as_bound,
    check_is_written,
    empty,
    on_gpu,
    run,
)

VARIANTS = ["readable", "matvec", "tile64", "tile32", "tile32_split_k"]
TILES = ["tile64", "tile32", "tile32_split_k"]


def source_of(kernel: str) -> str:
    op = "quantized_matmul" if kernel.startswith("quantized_matmul") else "matmul"
    variant = kernel[len(op) + 1 :]
    file = next(name for name in ("matvec", "tile", "readable") if name in variant)
    return f"{op}/{op}_{file}.metal"


def multiply(
    launch: Any, inputs: Sequence[np.ndarray], M: int, O: int, dtype: str, **how: Any
) -> np.ndarray:
    """Runs an M×O matmul kernel and, if I is split, the one that adds the parts."""
    parts = launch.groups[2]
    out = empty((M, O), dtype)
    if parts == 1:
        run(source_of(launch.kernel), launch, [*inputs, out], **how)
        return out
    sums = empty((parts, M, O), "float32")
    run(source_of(launch.kernel), launch, [*inputs, sums], **how)
    total = kernels.extension().metal.split_k_sum_launch(parts, M * O, dtype)
    run("matmul/matmul_tile.metal", total, [sums, out], **how)
    return out


def exact_quantized(
    scales: mx.array, biases: mx.array, a: mx.array, b: mx.array, group_size: int, bits: int
) -> tuple[np.ndarray, np.ndarray]:
    """Matmul in float64, and the sum of magnitudes of q·scale·a and bias·a."""
    scales, biases = as_numpy(scales).astype(np.float64), as_numpy(biases).astype(np.float64)
    a = as_numpy(a).astype(np.float64)
    words = np.array(b)
    q = words[..., None] >> np.arange(0, 32, bits, dtype=np.uint32) & np.uint32(2**bits - 1)
    q = q.reshape(words.shape[0], -1).astype(np.float64)
    scales, biases = np.repeat(scales, group_size, 1), np.repeat(biases, group_size, 1)
    expected = a @ (q * scales + biases).T
    return expected, np.abs(a) @ (q * np.abs(scales) + np.abs(biases)).T


def assert_matmul_close(
    actual: np.ndarray, expected: np.ndarray, magnitude: np.ndarray, I: int, what: str
) -> None:
    """Asserts the error bound of float32 sums of I terms plus one rounding.

    magnitude: sum of the terms' absolute values. Each addition's error is at most 2^-24 times this.
    """
    assert actual.dtype in NUMPY_TYPES.values()
    epsilon = {4: 2.0**-23, 2: 2.0**-10 if actual.dtype == np.float16 else 2.0**-7}
    rounding = epsilon[actual.dtype.itemsize] / 2 * np.abs(expected)
    if actual.dtype == np.float16:
        rounding += 2.0**-25  # half of float16's smallest subnormal number
    bound = rounding + 2.0**-24 * (2 + 2 * np.sqrt(I)) * magnitude
    error = np.abs(actual.astype(np.float64) - expected)
    assert not np.isnan(error).any(), f"{what}: {np.isnan(error).sum()} outputs are NaN"
    worst = (error / bound).max()
    worst_index = np.unravel_index((error / bound).argmax(), error.shape)
    assert worst <= 1, (
        f"{what}: at {tuple(map(int, worst_index))} expected {expected[worst_index]:.6g}, got "
        f"{float(actual[worst_index]):.6g}: {worst:.2f} × the error bound of float32 sums "
        f"and one rounding; {describe_mismatches(error > bound)}"
    )


def reference_quantized(
    scales: mx.array, biases: mx.array, group_size: int, bits: int, a: mx.array, b: mx.array
) -> np.ndarray:
    """a · bᵀ with the one-thread-per-output kernel of the source tree under test.

    Runs on the GPU if its kernels are built (differing dtypes of a and scales select this kernel),
    otherwise on the emulator.
    """
    check_is_written("quantized_matmul/quantized_matmul_readable.metal")
    metal, dtype = kernels.extension().metal, DTYPE_NAMES[a.dtype]
    if on_gpu():
        product = kernels.quantized_matmul(scales, biases, group_size, bits, a, b, stream=mx.gpu)
        return as_bound(product)
    if not has_clang():
        pytest.skip(NO_CLANG)
    (M, I), O = a.shape, b.shape[0]
    launch = metal.quantized_matmul_launch(
        M, O, I, group_size, bits, dtype, scales_dtype=DTYPE_NAMES[scales.dtype]
    )
    return multiply(launch, [as_bound(x) for x in (scales, biases, a, b)], M, O, dtype)


@dataclass(frozen=True)
class Matmul:
    """An M×O product of random matrices; `bits` and `group_size` of quantized ones, or 0."""

    M: int
    O: int
    I: int
    dtype: mx.Dtype
    arrays: tuple[mx.array, ...]  # (a, b), whose rows may be longer, or (scales, biases, a, b)
    bits: int = 0
    group_size: int = 0

    @classmethod
    def draw(
        cls,
        shape: tuple[int, int, int],
        dtype: mx.Dtype,
        bits: int = 0,
        group_size: int = 64,
        scales_dtype: mx.Dtype | None = None,
    ) -> "Matmul":
        M, O, I = shape
        a, b = random(M, I, dtype=dtype), random(O, I, dtype=scales_dtype or dtype)
        if not bits:
            return cls(M, O, I, dtype, (a, b))
        b, scales, biases = mx.quantize(b, group_size=group_size, bits=bits)
        return cls(M, O, I, dtype, (scales, biases, a, b), bits, group_size)

    def first_rows(self, count: int) -> "Matmul":
        *scales, a, b = self.arrays
        arrays = (*scales, a[:count], b)
        return Matmul(count, self.O, self.I, self.dtype, arrays, self.bits, self.group_size)

    def launch(self, **how: Any) -> Any:
        metal, dtype = kernels.extension().metal, DTYPE_NAMES[self.dtype]
        if self.bits:
            formats = self.group_size, self.bits
            return metal.quantized_matmul_launch(self.M, self.O, self.I, *formats, dtype, **how)
        how = {"a_stride": self.I, "b_stride": self.I, **how}
        return metal.matmul_launch(self.M, self.O, self.I, dtype, **how)

    def run(self, launch: Any, **how: Any) -> np.ndarray:
        arrays = [as_bound(x) for x in self.arrays]
        return multiply(launch, arrays, self.M, self.O, DTYPE_NAMES[self.dtype], **how)

    def assert_close(self, actual: np.ndarray, what: str) -> None:
        """Compares with the product in float64."""
        if self.bits:
            exact = exact_quantized(*self.arrays, self.group_size, self.bits)
        else:
            a, b = (as_numpy(x[:, : self.I]).astype(np.float64) for x in self.arrays)
            exact = a @ b.T, np.abs(a) @ np.abs(b).T
        assert_matmul_close(actual, *exact, self.I, what)
