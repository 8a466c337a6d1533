"""Matmul jobs of metal_traffic: tiny-llm vs. MLX, in Qwen3's shapes."""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tiny_llm import kernels

from .metal_jobs import Job, RatioLimits, Size, Step, mlx_library, our_step

# (outputs, inputs) of the projections: query, attention output, gate or up, down, LM head.
SHAPES = {
    "0.6b": [(2048, 1024), (1024, 2048), (3072, 1024), (1024, 3072), (151936, 1024)],
    "4b": [(4096, 2560), (2560, 4096), (9728, 2560), (2560, 9728), (151936, 2560)],
    "8b": [(4096, 4096), (4096, 4096), (12288, 4096), (4096, 12288), (151936, 4096)],
}
# MLX's arguments for zero batch dimensions: their number, shape and strides.
NO_BATCH: list[Any] = [0, np.zeros(1, np.int32), np.zeros(1, np.int64)]


@dataclass(frozen=True)
class Matmul:
    """Matmul of M×I activations and an O×I weight in bfloat16, and its measured m×o slice."""

    M: int
    O: int
    I: int
    bits: int = 16  # bits per weight, 16 for bfloat16
    group_size: int = 0

    @property
    def m(self) -> int:
        """Rows of the slice: M, but at most the 64 rows of one tile."""
        return min(self.M, 64)

    @property
    def o(self) -> int:
        """Columns of the slice: a multiple of all tile and simdgroup widths."""
        return 64

    @property
    def times(self) -> int:
        """Number of slices in the full matmul."""
        return self.M // self.m * (self.O // self.o)

    def x(self) -> np.ndarray:
        """Input rows of the slice."""
        return np.ones((self.m, self.I), ml_dtypes.bfloat16)

    def weights(self) -> list[np.ndarray]:
        """Weights of the slice: [scales, biases, packed integers], or one bfloat16 matrix."""
        if self.bits == 16:
            return [np.ones((self.o, self.I), ml_dtypes.bfloat16)]
        groups = np.ones((self.o, self.I // self.group_size), ml_dtypes.bfloat16)
        return [groups, groups, np.ones((self.o, self.I * self.bits // 32), np.uint32)]

    def out(self) -> np.ndarray:
        """Output array of the slice."""
        return np.zeros((self.m, self.o), ml_dtypes.bfloat16)


def matmul_jobs() -> list[Job]:
    """Decoding with 1 to 16 sequences, and prefill; quantized and dense."""
    jobs = []
    for model, shapes in SHAPES.items():
        for O, I in dict.fromkeys(shapes):
            jobs.append(_quantized(f"decode {model}", Matmul(1, O, I, 4, 128)))
        for O, I in shapes[2:4]:
            for M in (2, 4, 8, 16, 128, 512):
                name = "decode" if M <= 16 else "prefill"
                jobs.append(_quantized(f"{name} {model}", Matmul(M, O, I, 4, 128)))
        O, I = shapes[2]
        jobs.append(_quantized(f"decode {model}", Matmul(1, O, I, 8, 64)))
        jobs.append(_quantized(f"prefill {model}", Matmul(512, O, I, 8, 64)))
        jobs.append(_dense(f"decode {model}", Matmul(1, O, I)))
        jobs.append(_dense(f"prefill {model}", Matmul(512, O, I)))
    return jobs


def _job(
    name: str,
    matmul: Matmul,
    kernel: str,
    mlx_kernel: str,
    ours: Callable[[], list[Step]],
    mlx: Callable[[], list[Step]],
) -> Job:
    M, O, I = matmul.M, matmul.O, matmul.I
    form = f"{matmul.bits} bits, groups of {matmul.group_size}" if matmul.group_size else "dense"
    return Job(
        name=f"{'quantized_matmul' if matmul.group_size else 'matmul'} {name}",
        shape=f"{M}×{O}×{I}, {form}",
        slice=f"{matmul.m}×{matmul.o}",
        times=matmul.times,
        limits=RatioLimits(),
        kernel=kernel,
        mlx_kernel=mlx_kernel,
        ours=ours,
        mlx=mlx,
    )


def _variant(kernel: str) -> str:
    """Kernel variant, parsed from a kernel's name."""
    match = re.search(r"matmul_(readable|matvec|tile64|tile32_split_k|tile32)", kernel)
    assert match, kernel
    return match[1]


def _with_sum(source: str, launch: Any, inputs: list[np.ndarray], matmul: Matmul) -> list[Step]:
    """Launch of a matmul and, if it is split along I, of the sum over the splits."""
    parts = launch.groups[2]
    if parts == 1:
        return [our_step(source, launch, [*inputs, matmul.out()])]
    sums = np.zeros((parts, matmul.m, matmul.o), np.float32)
    metal = kernels.extension().metal
    total = metal.split_k_sum_launch(parts, matmul.m * matmul.o, "bfloat16")
    return [
        our_step(source, launch, [*inputs, sums]),
        our_step("matmul/matmul_tile.metal", total, [sums, matmul.out()]),
    ]


def _quantized(name: str, matmul: Matmul) -> Job:
    launch = kernels.extension().metal.quantized_matmul_launch
    form = (matmul.group_size, matmul.bits, "bfloat16")
    variant = _variant(launch(matmul.M, matmul.O, matmul.I, *form).kernel)
    chosen = launch(matmul.m, matmul.o, matmul.I, *form, variant=variant)
    suffix = "matvec" if variant == "matvec" else "tile"

    def ours() -> list[Step]:
        scales, biases, b = matmul.weights()
        source = f"quantized_matmul/quantized_matmul_{suffix}.metal"
        return _with_sum(source, chosen, [scales, biases, matmul.x(), b], matmul)

    vector = matmul.M <= 8
    kernel = f"{'qmv_fast' if vector else 'qmm_t'}_b{matmul.bits}_g{matmul.group_size}"

    def mlx() -> list[Step]:
        scales, biases, b = matmul.weights()
        sizes = [matmul.I, matmul.o, *([] if vector else [matmul.m])]
        arguments = [b, scales, biases, matmul.x(), matmul.out(), *sizes]
        arguments += [*NO_BATCH, *NO_BATCH, *NO_BATCH[2:] * 2]
        groups: Size = (matmul.m, matmul.o // 8, 1)
        if not vector:
            groups = (matmul.o // 32, -(-matmul.m // 32), 1)
        library = mlx_library("quantized", c200=1, c201=1, c202=1)
        return [Step(library, kernel, arguments, groups, (32, 2, 1 if vector else 2))]

    return _job(name, matmul, chosen.kernel, kernel, ours, mlx)


def _dense(name: str, matmul: Matmul) -> Job:
    launch, I = kernels.extension().metal.matmul_launch, matmul.I
    variant = _variant(launch(matmul.M, matmul.O, I, "bfloat16", I, I).kernel)
    chosen = launch(matmul.m, matmul.o, I, "bfloat16", I, I, variant=variant)
    suffix = "matvec" if variant == "matvec" else "tile"

    def ours() -> list[Step]:
        return _with_sum(
            f"matmul/matmul_{suffix}.metal", chosen, [matmul.x(), *matmul.weights()], matmul
        )

    def gemv() -> list[Step]:
        arguments: dict[int, Any] = dict(
            enumerate([*matmul.weights(), matmul.x(), matmul.x(), matmul.out()])
        )
        arguments |= {4: I, 5: matmul.o, 6: I, 7: 1.0, 8: 0.0, 9: 1, 14: 1}
        arguments |= {10: NO_BATCH[1], **dict.fromkeys((11, 12, 13), NO_BATCH[2])}
        groups = (matmul.o // 16, 1, 1)
        return [Step(mlx_library("gemv"), "gemv", arguments, groups, (32, 1, 4))]

    def gemm() -> list[Step]:
        tiles = (matmul.o // 64, matmul.m // 64)
        params = struct.pack("8i3q2i1i4x", matmul.m, matmul.o, I, I, I, matmul.o, *tiles,
                             0, 0, 0, 0, I // 16, 0)  # fmt: skip
        constants = {"c10": 0, "c100": 0, "c110": 0, "c200": 1, "c201": 1, "c202": 1}
        arguments = {0: matmul.x(), 1: matmul.weights()[0], 3: matmul.out(), 4: params}
        library = mlx_library("gemm", **constants)
        return [Step(library, "gemm_nt_64_64_16", arguments, (*tiles, 1), (32, 2, 2))]

    kernel, mlx = ("gemv", gemv) if matmul.M == 1 else ("gemm_nt_64_64_16", gemm)
    return _job(name, matmul, chosen.kernel, kernel, ours, mlx)
