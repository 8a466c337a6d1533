"""`quantized_embedding` compared with `mx.dequantize` of the same rows."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import as_numpy, random
from tiny_llm import QuantizedEmbedding, QuantizedWeights, kernels

V = 131


def table(E: int, bits: int, group_size: int, dtype: mx.Dtype) -> tuple:
    weight, scales, biases = mx.quantize(random(V, E, dtype=dtype), group_size, bits)
    return scales, biases, group_size, bits, weight


def dequantized(table: tuple) -> np.ndarray:
    scales, biases, group_size, bits, weight = table
    with mx.stream(mx.cpu):
        return as_numpy(mx.dequantize(weight, scales, biases, group_size, bits))


def look_up(ids: mx.array, table: tuple) -> np.ndarray:
    return as_numpy(kernels.quantized_embedding(ids, *table))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("E", [128, 384, 1024])
def test_bitwise_equal_to_dequantize(dtype, bits, group_size, E):
    rows = table(E, bits, group_size, dtype)
    ids = mx.random.randint(0, V, (3000,))  # on all threads
    np.testing.assert_array_equal(look_up(ids, rows), dequantized(rows)[np.array(ids)])


@pytest.mark.parametrize("ids_dtype", [mx.int32, mx.uint32], ids=["int32", "uint32"])
@pytest.mark.parametrize("shape", [(), (0,), (1, 1), (2, 3), (2, 0, 4), (3, 1, 2)], ids=str)
def test_any_shape_of_ids(ids_dtype, shape):
    rows = table(64, 4, 32, mx.bfloat16)
    ids = mx.random.randint(0, V, shape).astype(ids_dtype)
    actual = kernels.quantized_embedding(ids, *rows)
    assert (actual.shape, actual.dtype) == ((*shape, 64), mx.bfloat16)
    np.testing.assert_array_equal(as_numpy(actual), dequantized(rows)[np.array(ids)])


def test_first_last_and_out_of_range_ids(dtype):
    rows = table(64, 4, 32, dtype)
    plain = dequantized(rows)
    actual = look_up(mx.array([0, V - 1, -1, -V, V, -V - 1, 2**31 - 1, -(2**31)]), rows)
    np.testing.assert_array_equal(actual[:4], plain[[0, V - 1, V - 1, 0]])
    assert np.isnan(actual[4:]).all(), "expected NaN for out-of-range ids"
    actual = look_up(mx.array([V - 1, V, 2**32 - 1], dtype=mx.uint32), rows)
    np.testing.assert_array_equal(actual[0], plain[V - 1])
    assert np.isnan(actual[1:]).all(), "expected NaN for out-of-range ids"


@pytest.mark.parametrize("ids_dtype", [mx.int64, mx.uint8, mx.uint32], ids=str)
def test_layer_accepts_ids_of_any_integer_dtype(ids_dtype):
    rows = table(64, 8, 32, mx.bfloat16)
    layer = QuantizedEmbedding(V, 64, QuantizedWeights(*rows))
    ids = mx.array([[0, 130], [7, 7]]).astype(ids_dtype)
    np.testing.assert_array_equal(as_numpy(layer(ids)), dequantized(rows)[np.array(ids)])
