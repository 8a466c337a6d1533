"""GPU guarantees: bitwise equality and error bounds.

    bits     a row is bitwise equal in all batches of 1 to 8 rows, and in all of 9 rows or more
    bound    the kernels for up to 8 and for more rows differ only in summation order

src/extensions/README.md documents these guarantees. On the CPU, all results are bitwise equal.
test_flash_attention.py, test_matmul.py and test_operations.py compare the bits of repeated calls.
"""

from collections.abc import Iterator

import mlx.core as mx
import pytest

from tests.metal.matmuls import Matmul
from tests.metal.support import as_bound, on_gpu
from tests.ops import attention_problems
from tests.ops.attention_problems import assert_exact, exact
from tests.ops.operations import OPERATIONS
from tests.ops.test_operations import rows_of
from tests.paging import cut_into_pages, padded
from tests.support import assert_same_bits
from tiny_llm import kernels
from tools.metal_emulator import Device, emulated_gpu

pytestmark = pytest.mark.skipif(
    not kernels.is_built() or not (on_gpu() or kernels.computes_on_cpu()),
    reason="needs a GPU or, if operations run on the CPU, the emulator",
)


FEW = 8  # maximum number of rows for the small-batch kernels


class RealGpu:
    """This machine's GPU, with the interface of the emulated device."""

    def stream(self) -> mx.DeviceType:
        return mx.gpu


@pytest.fixture(scope="module")
def gpu() -> Iterator[Device | RealGpu]:
    """GPU under test: this machine's if it has one, otherwise the emulated one."""
    if on_gpu():
        yield RealGpu()
        return
    with emulated_gpu(kernels.extension()) as device:
        yield device


LABELS = ("quantized_matmul", "rms_norm", "add_rms_norm", "swiglu", "add_bias", "matmul")
EACH_DTYPE = [
    pytest.param(op, dtype, marks=pytest.mark.slow if op.name == "matmul" else ())
    for op in OPERATIONS
    if op.label in LABELS
    for dtype in op.dtypes
]


@pytest.mark.parametrize(("op", "dtype"), EACH_DTYPE)
@pytest.mark.parametrize("total", [2, 3, 4, 5, FEW, 131])
def test_rows_are_batch_invariant(gpu, op, dtype, total):
    """In a small batch, each row alone; in a large one, the first rows with fewer others."""
    arguments = op.arguments(dtype, total, 192)

    def results(rows):
        return op(stream=gpu.stream(), **rows_of(op, arguments, rows))

    together = results(slice(None))
    alone = [slice(row, row + 1) for row in range(total)]
    parts = alone if total <= FEW else [slice(count) for count in (FEW + 1, 33, 64, 100)]
    if "matmul" not in op.name:
        parts.append(alone[-1])  # in a batch of any size
    for rows in parts:
        for actual, expected in zip(results(rows), together, strict=True):
            assert_same_bits(actual, expected[rows], f"{op.label}, {rows}")


@pytest.mark.slow
@pytest.mark.parametrize("L", [1, 3, FEW])
def test_decode_attention_is_batch_invariant(gpu, dtype, L):
    """Paged attention equals it bitwise; see test_paged.py."""
    problem, lengths = attention_problems.problem(3, 2, 2, L, 700, 64, dtype), [700, 9, 300]

    def attend(which):
        lens, stream = mx.array(lengths[which]), gpu.stream()
        arrays = (x[which] for x in problem)
        return kernels.flash_attention(*arrays, causal=True, context_lens=lens, stream=stream)

    together = attend(slice(0, 3))
    for b in range(3):
        assert_same_bits(attend(slice(b, b + 1)), together[b : b + 1], f"sequence {b}")


@pytest.mark.parametrize("half", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("I", [64, 1024])
def test_matmul_kernels_have_only_summation_errors(gpu, half, I):
    problem = Matmul.draw((FEW + 1, 33, I), half, bits=4)
    for part in (problem.first_rows(FEW), problem):
        scales, biases, a, b = part.arrays
        actual = kernels.quantized_matmul(scales, biases, 64, 4, a, b, stream=gpu.stream())
        part.assert_close(as_bound(actual), f"{part.M} rows")


@pytest.mark.parametrize("S", [40, 700])
@pytest.mark.parametrize("pages", [False, True], ids=["contiguous", "pages"])
def test_attention_kernels_have_only_summation_errors(gpu, dtype, pages, S):
    """Computes 4 queries alone and in a chunk of 12, by different kernels."""
    query, key, value = attention_problems.problem(1, 2, 2, FEW + 4, S, 64, dtype)
    *arrays, table = cut_into_pages([(key[0], value[0])], 32) if pages else (key, value, None)
    for queries in (query[:, :, :4], query):
        if pages:
            lengths = padded(table), mx.array([S])
            actual = kernels.paged_attention(
                queries, *arrays, *lengths, causal=False, stream=gpu.stream()
            )
        else:
            actual = kernels.flash_attention(queries, *arrays, stream=gpu.stream())
        assert_exact(actual, *exact(queries, key, value, 64**-0.5, None))
    if dtype == mx.float32:
        with pytest.raises(AssertionError, match="elements are wrong"):  # without the first key
            assert_exact(actual, *exact(query, key[:, :, 1:], value[:, :, 1:], 64**-0.5, None))
