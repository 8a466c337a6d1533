"""Kernel selection by name for the tests of Week 4."""

import mlx.core as mx
import numpy as np
import pytest

from tiny_llm import kernels

R = 32  # weight rows per prepacked block, see day 4.3

SIMD_ISAS = [
    name
    for name in (kernels.extension().instruction_sets() if kernels.is_built() else [])
    if name in ("avx2", "avx512vnni", "avx512", "neon")
]


def use_matmul_kernel(
    name: str, instruction_set: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_kernel("TINY_LLM_MATMUL", name, instruction_set, monkeypatch)


def use_kernel(
    variable: str, name: str, instruction_set: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Selects an operation's Week 4 kernel and its instruction set.

    Without SIMD kernels for this machine (`instruction_set` is None), the test is skipped, or
    fails if the extension is not built.
    """
    monkeypatch.setenv(variable, name)
    _use_isa(instruction_set, monkeypatch)


def use_fused_kernels(instruction_set: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Selects the SIMD kernels of norms, RoPE and SwiGLU."""
    monkeypatch.setenv("TINY_LLM_FUSED", "vectors")
    _use_isa(instruction_set, monkeypatch)


def _use_isa(instruction_set: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if instruction_set is not None:
        monkeypatch.setenv("TINY_LLM_CPU_ISA", instruction_set)
    elif kernels.is_built():
        pytest.skip("no SIMD kernel supports this machine")


def prepacked_args(scales, biases, group_size, bits, a, b):
    """`quantized_matmul` arguments with weights prepacked by NumPy."""
    return _prepacked(scales), _prepacked(biases), group_size, bits, a, _prepacked(b)


def _prepacked(matrix: mx.array) -> mx.array:
    integers = np.array(matrix.view(mx.uint16) if matrix.itemsize == 2 else matrix)
    blocks = [integers[first : first + R].T for first in range(0, len(integers), R)]
    return mx.array(np.ascontiguousarray(blocks)).view(matrix.dtype)
