"""Week 2, day 2: quantized weights and quantized matmul on the CPU."""

from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
import pytest

from tests.ops.quantized_matmul_problems import (
    HALVES,
    assert_exact_but_for_rounding,
    evaluated,
    problem,
)
from tests.support import assert_close, assert_same_bits, random
from tests.week_2.row_dot import row_dot
from tiny_llm import QuantizedEmbedding, QuantizedWeights, quantized_linear, quantized_matmul

SHAPES = [  # rows M, inputs I, outputs O
    (1, 128, 64),
    (2, 384, 33),
    (3, 128, 1),
    (7, 256, 67),
    (16, 1024, 130),
    (33, 640, 200),
    (67, 256, 128),
    (300, 128, 64),
]


@pytest.mark.parametrize("shape", [(1, 1), (3, 4), (2, 3, 5), (7,), (0, 3), (3, 0)], ids=str)
def test_task_0_scalar_product_of_each_row(shape):
    x, y = random(*shape), random(*shape)
    z = row_dot(x, y)
    assert (z.shape, z.dtype) == (shape[:-1], mx.float32)
    assert_close(z, (x * y).sum(axis=-1), "row_dot")


def test_task_0_strides_order_of_sums_and_lazy_inputs():
    x, y = random(6, 4).T, random(8, 12)[::2, ::2]
    assert_close(row_dot(x, y), (x * y).sum(axis=-1), "row_dot of strided arrays")
    x = mx.array([1, 1e8, -1e8])
    assert row_dot(x, mx.ones(3)).item() == 0, "expected (1 + 1e8) - 1e8, which rounds to 0"
    with mx.stream(mx.cpu):
        x = random(300, 300) @ random(300, 300)
        z = row_dot(x, x + 1)
    assert_close(z, (x * (x + 1)).sum(axis=-1), "row_dot in a graph", ulps=64)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (mx.ones((2, 3)), mx.ones((3, 2))),
        (mx.ones((2, 3)), mx.ones(3)),
        (mx.array(1.0), mx.array(1.0)),
        (mx.ones(3), mx.ones(3, dtype=mx.float16)),
        (mx.ones(3, dtype=mx.float16), mx.ones(3, dtype=mx.float16)),
    ],
    ids=["shapes", "broadcast", "scalars", "dtypes", "float16"],
)
def test_task_0_errors_are_raised_by_the_call(x, y):
    with pytest.raises(ValueError, match="row_dot"):
        row_dot(x, y)  # not evaluated


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_task_2_is_exact_up_to_rounding(instruction_set, bits, group_size, half, shape):
    assert_exact_but_for_rounding(instruction_set, problem(*shape, bits, group_size, half))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
def test_task_2_equals_mlx(instruction_set, bits, half):
    scales, biases, group_size, _, a, b = args = problem(5, 256, 96, bits, 64, half)
    expected = mx.quantized_matmul(
        a, b, scales, biases, transpose=True, group_size=group_size, bits=bits, stream=mx.cpu
    )
    # MLX's CPU kernel accumulates 256 products in the activations' dtype, not in float32.
    assert_close(evaluated(*args), expected, "quantized_matmul against MLX's", ulps=16)


@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
def test_task_2_scales_of_a_different_dtype(instruction_set, half):
    args = problem(2, 256, 64, 4, 128, half, scale_dtype=HALVES[half == mx.bfloat16])
    assert_exact_but_for_rounding(instruction_set, args)


@pytest.mark.parametrize("shape", [(256,), (3, 256), (2, 3, 256), (1, 1, 1, 256)])
def test_task_2_any_leading_dimensions(instruction_set, shape):
    scales, biases, group_size, bits, _, b = problem(1, 256, 67, 4, 128, mx.bfloat16)
    a = random(*shape, dtype=mx.bfloat16)
    actual = evaluated(scales, biases, group_size, bits, a, b)
    assert actual.shape == (*shape[:-1], 67)
    flat = evaluated(scales, biases, group_size, bits, a.reshape(-1, 256), b)
    assert_close(actual.reshape(-1, 67), flat, "leading dimensions are rows", ulps=0)


def test_task_2_strided_activations(instruction_set):
    scales, biases, group_size, bits, _, b = problem(1, 256, 67, 4, 128, mx.bfloat16)
    wide = random(5, 3, 512, dtype=mx.bfloat16)
    for strided in (wide[:, :, 256:], wide[::2, :, :256], wide[..., :256].swapaxes(0, 1)):
        actual = evaluated(scales, biases, group_size, bits, strided, b)
        expected = evaluated(scales, biases, group_size, bits, mx.contiguous(strided), b)
        assert_same_bits(actual, expected, f"activations {strided.shape} that are a view")


@pytest.mark.parametrize("bits", [4, 8])
def test_task_2_a_row_has_the_same_bits_alone_and_among_100(instruction_set, bits):
    scales, biases, group_size, bits, a, b = problem(100, 512, 67, bits, 64, mx.bfloat16)
    together = evaluated(scales, biases, group_size, bits, a, b)
    for row in (0, 1, 57, 99):
        alone = evaluated(scales, biases, group_size, bits, a[row : row + 1], b)
        assert_same_bits(alone[0], together[row], f"row {row} alone, and among 100")


def test_task_2_unknown_instruction_set(on_cpu, monkeypatch):
    """The evaluation raises, not the next operation."""
    args = problem(1, 128, 64, 4, 64, mx.bfloat16)
    monkeypatch.setenv("TINY_LLM_CPU_ISA", "sse9")
    with pytest.raises(ValueError, match='TINY_LLM_CPU_ISA must be .*, got "sse9"'):
        evaluated(*args)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_task_1_quantized_linear(bits, group_size):
    layer = nn.Linear(256, 96, bias=True)
    layer.set_dtype(mx.bfloat16)
    quantized = layer.to_quantized(group_size=group_size, bits=bits)
    quantized.bias = random(96, dtype=mx.bfloat16, scale=5)
    weights = QuantizedWeights.from_mlx_layer(quantized)
    named = SimpleNamespace(**quantized.parameters(), group_size=group_size, bits=bits)
    assert QuantizedWeights.from_mlx_layer(named).scales is weights.scales, (
        "from_mlx_layer must accept any object with the layer's attributes"
    )
    assert (weights.group_size, weights.bits) == (group_size, bits)
    x = random(2, 3, 256, dtype=mx.bfloat16)
    with mx.stream(mx.cpu):
        expected = quantized(x)
    assert_close(quantized_linear(x, weights, quantized.bias), expected, "quantized_linear", 16)
    assert weights.weight is quantized.weight, "nothing is copied"
    parts = weights.scales, weights.biases, group_size, bits, x, weights.weight
    with pytest.raises(ValueError, match="transpose_b"):
        quantized_matmul(*parts, transpose_b=False)


def test_task_1_non_affine_layers():
    with pytest.raises(ValueError, match="not quantized"):
        QuantizedWeights.from_mlx_layer(nn.Linear(64, 64))
    layer = nn.Linear(64, 64, bias=False).to_quantized(group_size=32, bits=4, mode="mxfp4")
    with pytest.raises(ValueError, match="mode 'mxfp4'"):
        QuantizedWeights.from_mlx_layer(layer)


def test_task_1_quantized_embedding():
    oracle = nn.Embedding(131, 64)
    oracle.set_dtype(mx.bfloat16)
    oracle = oracle.to_quantized(group_size=32, bits=4)
    embedding = QuantizedEmbedding(131, 64, QuantizedWeights.from_mlx_layer(oracle))
    ids = mx.array([[0, 130], [7, 7]])
    assert_close(embedding(ids), oracle(ids), "embedding rows", ulps=0)
    x = random(2, 2, 64, dtype=mx.bfloat16)
    with mx.stream(mx.cpu):
        expected = oracle.as_linear(x)
    assert_close(embedding.as_linear(x), expected, "embedding as the output layer", ulps=16)
