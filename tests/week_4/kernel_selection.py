"""Kernel selection by name for the tests of Week 4."""

import functools
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.ops.quantized_matmul_problems import HALVES
from tiny_llm import kernels

R = 32  # weight rows per prepacked block, see day 4.3

SIMD_ISAS = [
    name
    for name in (kernels.extension().instruction_sets() if kernels.is_built() else [])
    if name in ("avx2", "avx512vnni", "avx512", "neon")
]


def kernel_fixture(variable: str, name: str) -> Any:
    """Fixture: selects an operation's Week 4 kernel on each instruction set.

    Without SIMD kernels for this machine, tests are skipped, or fail if the extension is not built.
    The value is "portable", the instruction set whose rounding the kernels have.
    """

    @pytest.fixture(params=SIMD_ISAS or [None])
    def select(
        request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, on_cpu: None
    ) -> str:
        monkeypatch.setenv(variable, name)
        if request.param is not None:
            monkeypatch.setenv("TINY_LLM_CPU_ISA", request.param)
        elif kernels.is_built():
            pytest.skip("no SIMD kernel supports this machine")
        return "portable"

    return select


def matmul_cases(shapes, group_sizes=(32, 128)) -> Any:
    """Decorator: runs a test with each shape and each format of the weights."""
    marks = (
        pytest.mark.parametrize("bits", [4, 8]),
        pytest.mark.parametrize("group_size", group_sizes),
        pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"]),
        pytest.mark.parametrize("shape", shapes, ids=str),
    )
    return lambda test: functools.reduce(lambda marked, mark: mark(marked), marks, test)


def prepacked_args(scales, biases, group_size, bits, a, b):
    """`quantized_matmul` arguments with weights prepacked by NumPy."""
    return _prepacked(scales), _prepacked(biases), group_size, bits, a, _prepacked(b)


def _prepacked(matrix: mx.array) -> mx.array:
    integers = np.array(matrix.view(mx.uint16) if matrix.itemsize == 2 else matrix)
    blocks = [integers[first : first + R].T for first in range(0, len(integers), R)]
    return mx.array(np.ascontiguousarray(blocks)).view(matrix.dtype)
