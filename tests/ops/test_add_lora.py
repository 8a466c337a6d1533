"""`add_lora` compared with NumPy; odd ranks and batch invariance."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest

from tests.support import as_numpy, assert_close, assert_same_bits, random
from tiny_llm import kernels
from tiny_llm.kernels.graph_capture import CapturedFunction

# Rows M, inputs I, outputs O.
SHAPES = [(1, 1, 1), (1, 40, 72), (5, 131, 67), (33, 64, 300), (2, 17, 1000)]
RANKS = [(1,), (3, 8, 5), (0, 7, 16), (4, 0)]


def adapters(ranks: Sequence[int], I: int, O: int, dtype: mx.Dtype) -> tuple[mx.array, ...]:
    """Adapters of the given ranks: lora_a, lora_b, rank_offsets."""
    a, b = random(sum(ranks), I, dtype=dtype), random(sum(ranks), O, dtype=dtype)
    return a, b, mx.array(np.cumsum([0, *ranks]).astype(np.int32))


def reference(y, x, a, b, offsets, ids) -> mx.array:
    """Reference: a loop over rows in float64."""
    wide = [as_numpy(array).astype(np.float64) for array in (y, x, a, b)]
    out, x64, a64, b64 = wide[0].copy(), *wide[1:]
    for row, adapter in enumerate(ids):
        if 0 <= adapter < offsets.size - 1:
            own = slice(int(offsets[adapter].item()), int(offsets[adapter + 1].item()))
            out[row] += x64[row] @ a64[own].T @ b64[own]
    return mx.array(out.astype(np.float32)).astype(y.dtype)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_numpy(instruction_set, dtype, shape, ranks):
    M, I, O = shape
    y, x, matrices = (
        random(M, O, dtype=dtype),
        random(M, I, dtype=dtype),
        adapters(ranks, I, O, dtype),
    )
    # adapter ids from −1 (no adapter) to len(ranks) (out of range)
    ids = [(3 * row + 1) % (len(ranks) + 2) - 1 for row in range(M)]
    actual = kernels.add_lora(y, x, *matrices, mx.array(ids, dtype=mx.int32))
    mx.eval(actual)
    assert actual.dtype == dtype
    assert_close(actual, reference(y, x, *matrices, ids), f"{shape} with ranks {ranks}")


def test_rows_without_an_adapter_are_unchanged(instruction_set, dtype):
    y, x, matrices = (
        random(4, 70, dtype=dtype),
        random(4, 50, dtype=dtype),
        adapters([3], 50, 70, dtype),
    )
    actual = kernels.add_lora(y, x, *matrices, mx.array([-1, 0, 1, -7], dtype=mx.int32))
    for row in (0, 2, 3):
        assert_same_bits(actual[row], y[row], f"row {row}")
    assert not mx.array_equal(actual[1], y[1]).item()


def test_on_any_device(device, dtype):
    y, x, matrices = (
        random(2, 3, 33, dtype=dtype),
        random(2, 3, 20, dtype=dtype),
        adapters([2, 0, 5], 20, 33, dtype),
    )
    ids = [0, 2, -1, 1, 2, 3]
    actual = kernels.add_lora(y, x, *matrices, mx.array(ids, dtype=mx.int32))
    expected = reference(y.reshape(6, 33), x.reshape(6, 20), *matrices, ids)
    assert_close(actual.reshape(6, 33), expected, "add_lora")


def test_graph_capture():
    """A replayed graph reads the adapter ids of the current step."""
    x, (a, b, offsets) = random(1, 3, 40), adapters([2, 3], 40, 50, mx.float32)
    weight = random(50, 40)

    def layer(x: mx.array, ids: mx.array) -> tuple[mx.array]:
        return (kernels.add_lora(kernels.matmul(x, weight), x, a, b, offsets, ids),)

    captured = CapturedFunction(layer)
    for ids in ([0, 1, -1], [1, 1, 0], [-1, -1, -1]):
        given = mx.array(ids, dtype=mx.int32)
        assert_same_bits(captured(x, given)[0], layer(x, given)[0], f"ids {ids}")
    assert captured._graph_cache is not None


@pytest.mark.parametrize("shape", [(0, 4, 5), (3, 0, 5), (3, 4, 0)])
def test_empty_inputs(instruction_set, shape):
    M, I, O = shape
    y = mx.ones((M, O))
    matrices = adapters([2], I, O, mx.float32)
    out = kernels.add_lora(y, mx.ones((M, I)), *matrices, mx.zeros(M, dtype=mx.int32))
    assert mx.array_equal(out, y).item()


def test_without_adapters_returns_y():
    y = mx.ones((2, 3))
    a, b, offsets = adapters([], 4, 3, mx.float32)
    ids = mx.zeros(2, dtype=mx.int32)
    assert mx.array_equal(kernels.add_lora(y, mx.ones((2, 4)), a, b, offsets, ids), y).item()
