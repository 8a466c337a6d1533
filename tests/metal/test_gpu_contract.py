"""GPU guarantees: bitwise equality and error bounds.

    bits     repeated calls are bitwise equal; a row is bitwise equal in all batches of 1 to 8 rows,
             and in all batches of 9 rows or more
    bound    the kernels for up to 8 and for more rows differ only in summation order

src/extensions/README.md documents these guarantees. On the CPU, all results are bitwise equal.
"""

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

from tests.metal.support import on_gpu
from tests.ops.operations import OPERATIONS
from tests.ops.test_operations import rows_of
from tests.paging import cut_into_pages, padded, sequences
from tests.support import EPSILON, as_numpy, assert_same_bits, random
from tiny_llm import kernels
from tools.metal_emulator import Device, emulated_gpu

pytestmark = pytest.mark.skipif(
    not kernels.is_built() or not (on_gpu() or kernels.computes_on_cpu()),
    reason="needs a GPU or, if operations run on the CPU, the emulator",
)

HALVES = [mx.float16, mx.bfloat16]
FEW = 8  # maximum number of rows for the small-batch kernels


class RealGpu:
    """This machine's GPU, with the interface of the emulated device."""

    order = "hardware"

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


def quantized(O, I, dtype):
    words, scales, biases = mx.quantize(random(O, I, dtype=dtype), 64, 4)
    return scales, biases, 64, 4, words


def multiply(gpu, a, weights):
    scales, biases, group_size, bits, words = weights
    return kernels.quantized_matmul(scales, biases, group_size, bits, a, words, stream=gpu.stream())


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
    query, key, value = random(3, 4, L, 64, dtype=dtype), *random_pair(3, 700, dtype)
    lengths = mx.array([700, 9, 300])

    def attend(which):
        return kernels.flash_attention(
            query[which],
            key[which],
            value[which],
            causal=True,
            context_lens=lengths[which],
            stream=gpu.stream(),
        )

    together = attend(slice(0, 3))
    for b in range(3):
        assert_same_bits(attend(slice(b, b + 1)), together[b : b + 1], f"sequence {b}")


def random_pair(B, S, dtype):
    return random(B, 2, S, 64, dtype=dtype), random(B, 2, S, 64, dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [4, 64])
def test_paged_attention_is_batch_invariant(gpu, dtype, page_size):
    lengths = [900, 9, 300]
    keys, values, table = cut_into_pages(sequences(lengths, 2, 64, dtype), page_size)
    query = random(3, 4, 64, dtype=dtype)  # one token per sequence

    def attend(which):
        own = [table[b] for b in which]
        width = max(map(len, own))
        return kernels.paged_attention_varlen(
            query[mx.array(which)],
            keys,
            values,
            mx.arange(len(which) + 1, dtype=mx.int32),
            mx.array([lengths[b] for b in which]),
            mx.array([row + [-1] * (width - len(row)) for row in own]),
            stream=gpu.stream(),
        )

    together = attend([0, 1, 2])
    for b in range(3):
        assert_same_bits(attend([b])[0], together[b], f"sequence {b}")


@pytest.mark.parametrize("order", ["reverse", "random"])
def test_bitwise_equal_for_any_thread_order(gpu, order):
    weights, a = quantized(37, 192, mx.bfloat16), random(20, 192, dtype=mx.bfloat16)
    query, (key, value) = random(1, 4, 2, 64), random_pair(1, 700, mx.float32)

    def results():
        attention = kernels.flash_attention(query, key, value, causal=True, stream=gpu.stream())
        return [multiply(gpu, a[:3], weights), multiply(gpu, a, weights), attention]

    expected = results()
    mx.eval(expected)
    gpu.order = order
    try:
        for one, other in zip(results(), expected, strict=True):
            assert_same_bits(one, other, order)
    finally:
        gpu.order = "forward"


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("I", [64, 1024])
def test_matmul_kernels_agree_within_summation_error(gpu, half, I):
    """Results differ by at most 2 γ Σ|aᵢ wᵢ|, plus one ulp for rounding.

    γ = n u / (1 − n u) for n = I + 2 roundings (sums, a product and a scale) of u = 2⁻²⁴ each.
    """
    weights, a = quantized(33, I, half), random(FEW + 1, I, dtype=half)
    scales, biases, group_size, bits, words = weights
    few, many = multiply(gpu, a[:FEW], weights), multiply(gpu, a, weights)[:FEW]
    # The sums of q · scale and of bias may cancel, so the bound adds the magnitudes of both.
    exact = as_numpy(mx.dequantize(words, scales, mx.zeros_like(biases), group_size, bits))
    shift = np.repeat(as_numpy(biases), group_size, axis=1)
    sizes = np.abs(as_numpy(a[:FEW])) @ (np.abs(exact) + np.abs(shift)).T
    n, u = I + 2, 2.0**-24
    bound = 2 * n * u / (1 - n * u) * sizes + EPSILON[half] * np.abs(as_numpy(few))
    distance = np.abs(as_numpy(few) - as_numpy(many))
    assert (distance <= bound).all(), (distance / bound).max()


def attention_error_bound(query, key, value, scale):
    """Bound on the difference of two kernels' outputs; queries H×L×D, keys H×S×D.

    With n roundings of u = 2⁻²⁴ each, a sum has a relative error of γ = n u / (1 − n u) of the sum
    of its terms' magnitudes.

    - A score has an error of δ = γ · scale · Σ|q k| with n = D + 2.
    - A weight is a product of exponentials: one for its block, and one for each later block of 8
      or more keys, B in all. Each has a relative error of 8 u (4 ulp); their arguments, whose sum
      is at most twice the scores' range R, have a relative error of u. So a weight has a relative
      error of ρ = exp(δ + 2 u R) · (1 + 8 u)^(B + 2) − 1.
    - Numerator and denominator are sums of S terms with B rescalings: n = S + B. Their ratio has an
      error of (1 + ρ)(1 + γ) / ((1 − ρ)(1 − γ)) − 1 times Σ p |v| in each kernel, where p are the
      softmax weights.
    """
    q, k, v = (as_numpy(x).astype(np.float64) for x in (query, key, value))
    S, D, u = k.shape[1], k.shape[2], 2.0**-24

    def gamma(n):
        return n * u / (1 - n * u)

    k, v = (np.repeat(x, len(q) // len(k), 0) for x in (k, v))
    scores = scale * q @ k.swapaxes(-1, -2)
    delta = gamma(D + 2) * scale * (np.abs(q) @ np.abs(k).swapaxes(-1, -2)).max()
    blocks = -(-S // 8)
    rho = np.exp(delta + 2 * u * np.ptp(scores)) * (1 + 8 * u) ** (blocks + 2) - 1
    off = (1 + rho) * (1 + gamma(S + blocks)) / ((1 - rho) * (1 - gamma(S + blocks))) - 1
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return 2 * off * (weights / weights.sum(-1, keepdims=True)) @ np.abs(v)


@pytest.mark.parametrize("S", [40, 700])
@pytest.mark.parametrize("pages", [False, True], ids=["contiguous", "pages"])
def test_attention_kernels_agree_within_derived_bound(gpu, dtype, pages, S):
    """Computes 4 queries alone and in a chunk of 12; see `attention_error_bound`."""
    query = random(1, 4, FEW + 4, 64, dtype=dtype)
    key, value = random(1, 2, S, 64, dtype=dtype), random(1, 2, S, 64, dtype=dtype)

    def attend(queries):
        if not pages:
            return kernels.flash_attention(queries, key, value, stream=gpu.stream())
        key_pages, value_pages, table = cut_into_pages([(key[0], value[0])], 32)
        lengths = mx.array([S])
        return kernels.paged_attention(
            queries,
            key_pages,
            value_pages,
            padded(table),
            lengths,
            causal=False,
            stream=gpu.stream(),
        )

    few, many = as_numpy(attend(query[:, :, :4]))[0], as_numpy(attend(query))[0, :, :4]
    bound = attention_error_bound(query[0, :, :4], key[0], value[0], 64**-0.5)
    bound += EPSILON[dtype] * np.abs(few)  # for the rounding of both kernels' results
    ratio = (np.abs(few - many) / bound).max()
    assert ratio <= 1, ratio
    # In float32, the bound is tight enough to detect an extra key.
    if dtype == mx.float32:
        other = as_numpy(
            kernels.flash_attention(
                query[:, :, :4], key[:, :, 1:], value[:, :, 1:], stream=gpu.stream()
            )
        )
        assert (np.abs(few - other[0]) > bound).any()
