"""Recurrent operations: reference, state slots, chunks, layouts."""

from itertools import islice

import mlx.core as mx
import numpy as np
import pytest

from tests.ops.recurrent_problems import (
    CONV,
    DELTA,
    SLOTS,
    Arrays,
    Batch,
    assert_chunks_are_bitwise_equal,
    conv_problem,
    delta_problem,
    ragged_batch,
)
from tests.ops.test_operations import layouts
from tests.support import as_numpy, assert_close, assert_same_bits
from tiny_llm import kernels

CONV_SHAPES = [(4, 1), (2, 7), (3, 16), (8, 40), (4, 300)]  # (kernel width K, channels C)
DELTA_SHAPES = [  # key heads, value heads, key head size, value head size
    (1, 1, 1, 1),
    (2, 4, 6, 10),
    (1, 4, 8, 32),
    (2, 2, 33, 70),
    (1, 2, 128, 128),
    (1, 1, 256, 64),
]
each_operation = pytest.mark.parametrize("op", [CONV, DELTA], ids=["conv", "delta"])


@pytest.mark.parametrize("weight", ["C×K", "K×C", "float32"])
@pytest.mark.parametrize("shape", CONV_SHAPES, ids=str)
def test_conv_equals_reference(instruction_set, dtype, shape, weight):
    batch = ragged_batch([5, 1, 12])
    arrays = conv_problem(*shape, batch, dtype, by_tap=weight == "K×C")
    if weight == "float32":
        arrays["weight"] = arrays["weight"].astype(mx.float32) * 1.1
    y, states = CONV(**arrays)
    expected, after = CONV.reference(**arrays)
    assert y.dtype == mx.float32
    assert_close(y, expected, "y", ulps=16)
    assert_same_bits(states, after, "states")


def assert_delta_equals_reference(arrays: Arrays, num_k_heads: int) -> None:
    """Allows 16 ulps, because float32 sums over the key head size are rounded."""
    arguments = {**arrays, "num_k_heads": num_k_heads}
    for name, actual, expected in zip(
        ("o", "states"), DELTA(**arguments), DELTA.reference(**arguments), strict=True
    ):
        assert_close(actual, expected, name, ulps=16)


@pytest.mark.parametrize("shape", DELTA_SHAPES, ids=str)
def test_delta_equals_reference(instruction_set, dtype, shape):
    arrays = delta_problem(*shape, ragged_batch([5, 1, 12]), dtype)
    assert_delta_equals_reference(arrays, shape[0])


def test_long_sequence(instruction_set):
    batch = Batch((700,), (1,), (-1,) * 699 + (1,))
    arrays = delta_problem(1, 2, 16, 40, batch, mx.bfloat16)
    arrays["A_log"] -= 5  # slow decay, so that the state depends on hundreds of tokens
    assert_delta_equals_reference(arrays, 1)


def test_extreme_gates(instruction_set, dtype):
    """γ and β of 0 and 1; the smallest and largest inputs with finite squares."""
    batch = Batch((6,), (0,), (1,) * 6)
    arrays = delta_problem(1, 1, 8, 8, batch, dtype)
    arrays["a"] = mx.array([[-60.0], [60], [0], [-60], [60], [0]]).astype(dtype)
    arrays["b"] = mx.array([[60.0], [-60], [60], [60], [-60], [0]]).astype(dtype)
    arrays["A_log"] = mx.array([3.0])
    scale = mx.array([1.0, 1e-12, 0, 1e3, 1e-4, 1])[:, None]
    arrays["qkv"] = mx.concatenate([arrays["qkv"][:, :16] * scale, arrays["qkv"][:, 16:]], axis=1)
    assert_delta_equals_reference(arrays, 1)


@each_operation
@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_bitwise_equal_for_any_chunk_size(instruction_set, dtype, op, chunk):
    assert_chunks_are_bitwise_equal(op, chunk, dtype)


@each_operation
def test_every_state_of_a_chunk_can_be_stored(instruction_set, op):
    """The state after token i equals that of a step that ends with token i."""
    arrays = op.problem(Batch((7,), (8,), tuple(range(7))), mx.float32)
    states = op(**arrays)[1]
    for i in range(7):
        short = {name: arrays[name][: i + 1] for name in op.tokens}
        batch = Batch((i + 1,), (8,), (-1,) * i + (8,))
        after = op(**{**arrays, **short, **batch.arrays})[1]
        assert_same_bits(states[i], after[8], f"state after token {i}")
    assert_same_bits(states[8], arrays[op.states][8], "read slot")


def test_bitwise_equal_for_any_alignment(instruction_set):
    """Covers states that start at a memory page, as those of a model do."""
    batch = Batch((7, 3), (-1, -1), (0, -1, 1, -1, 2, -1, 3, 4, -1, 5))
    arrays = delta_problem(1, 2, 16, 64, batch, mx.float32) | {"states": None}
    results = []
    for states in (
        mx.zeros((SLOTS, 2, 16, 64)),
        kernels.reserve_zeros((SLOTS, 2, 16, 64), mx.float32),
    ):
        for reads in ((-1, -1), (1, 4)):
            given = {**arrays, "states": states, "read_slots": mx.array(reads)}
            o, states = DELTA.lazy(**given)
            del given
            mx.eval(o, states)
            results += [o, mx.array(states)]
    for actual, expected in zip(results[4:], results[:4], strict=True):
        assert_same_bits(actual, expected, "o or states")


@each_operation
def test_any_strides_are_bitwise_equal(instruction_set, dtype, op):
    arrays = op.problem(ragged_batch([4, 2]), dtype)
    expected = op(**arrays)
    for name, value in arrays.items():
        for layout, view in islice(layouts(value), 5):  # all except "broadcast"
            for actual, reference in zip(op(**{**arrays, name: view}), expected, strict=True):
                assert_same_bits(actual, reference, f"{name}: {layout}")


@each_operation
def test_invalid_values_are_ignored(instruction_set, op):
    invalid = Batch((2, 3), (SLOTS, -7), (SLOTS, -2, 99, -1, 2**31 - 1))
    arrays = op.problem(invalid, mx.float32)
    zeros = Batch((2, 3), (-1, -1), (-1,) * 5)
    outputs, states = op(**arrays)
    assert_same_bits(outputs, op(**{**arrays, **zeros.arrays})[0], "outputs from a zero state")
    assert_same_bits(states, arrays[op.states], "states")
    op(**{**arrays, "cu_seqlens": mx.array([-5, 3, 2**31 - 1])})
    op(**{**arrays, "cu_seqlens": mx.array([9, 1, -1])})


@pytest.mark.parametrize(("shape", "S"), [((0, 8), 2), ((2, 0), 2), ((2, 8), 0), ((0, 0), 0)])
def test_no_elements(instruction_set, dtype, shape, S):
    T, C = shape
    batch = Batch((T,) if T else (), (0,) if T else (), (0,) * T)
    conv = conv_problem(4, C, batch, dtype) | {"conv_states": mx.zeros((S, 3, C), dtype)}
    assert [x.shape for x in CONV(**conv)] == [(T, C), (S, 3, C)]
    delta = delta_problem(1, 2, C, C, batch, dtype) | {"states": mx.zeros((S, 2, C, C))}
    assert [x.shape for x in DELTA(**delta)] == [(T, 2, C), (S, 2, C, C)]


@pytest.mark.parametrize("value", [mx.nan, mx.inf])
def test_nan_and_infinity_stay_in_their_head(instruction_set, value):
    arrays = delta_problem(2, 2, 8, 40, ragged_batch([4, 2]), mx.float32) | {"num_k_heads": 2}
    clean = as_numpy(DELTA(**arrays)[0])
    arrays["qkv"][1, 9] = value  # an element of head 1's query in the first sequence
    dirty = as_numpy(DELTA(**arrays)[0])
    assert np.isnan(dirty[1, 1]).all()
    dirty[1, 1] = clean[1, 1]
    np.testing.assert_array_equal(dirty, clean)
