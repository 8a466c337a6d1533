"""What the tests of Week 4 share: how a test runs a kernel by name."""

import mlx.core as mx
import numpy as np
import pytest

from tiny_llm import kernels

R = 32  # rows of weights that the kernels from day 4.3 on want together

SIMD_ISAS = [
    name
    for name in (kernels.extension().instruction_sets() if kernels.is_built() else [])
    if name in ("avx2", "avx512", "neon")
]


def use_matmul_kernel(
    name: str, instruction_set: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products go through a kernel of Week 4: see `use_kernel`."""
    use_kernel("TINY_LLM_MATMUL", name, instruction_set, monkeypatch)


def use_kernel(
    variable: str, name: str, instruction_set: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operation goes through a kernel of Week 4, with the vectors of an instruction set.

    Args:
        variable: which operation: TINY_LLM_MATMUL or TINY_LLM_ATTENTION.
        name: what it is set to.
        instruction_set: one of `SIMD_ISAS`; None skips the test where there are none, and lets
            it fail where the extension is not built.
        monkeypatch: takes it back.
    """
    monkeypatch.setenv(variable, name)
    _use_isa(instruction_set, monkeypatch)


def use_fused_kernels(instruction_set: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms, rotation and SwiGLU go through the kernels with vectors; arguments as above."""
    monkeypatch.setenv("TINY_LLM_FUSED", "vectors")
    _use_isa(instruction_set, monkeypatch)


def _use_isa(instruction_set: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if instruction_set is not None:
        monkeypatch.setenv("TINY_LLM_CPU_ISA", instruction_set)
    elif kernels.is_built():
        pytest.skip("this machine has no vectors that the kernel is compiled for")


def prepacked_args(scales, biases, group_size, bits, a, b):
    """The same problem with weights laid out as the kernels read them, whatever task 1 does."""
    return _prepacked(scales), _prepacked(biases), group_size, bits, a, _prepacked(b)


def _prepacked(matrix: mx.array) -> mx.array:
    integers = np.array(matrix.view(mx.uint16) if matrix.itemsize == 2 else matrix)
    blocks = [integers[first : first + R].T for first in range(0, len(integers), R)]
    return mx.array(np.ascontiguousarray(blocks)).view(matrix.dtype)
