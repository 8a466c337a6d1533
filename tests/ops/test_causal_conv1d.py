"""`causal_conv1d`: reference, state slots, chunking, batch invariance."""

import mlx.core as mx
import numpy as np
import pytest

from tests.ops.recurrent_problems import SLOTS, Batch, causal_conv1d, conv_problem, ragged_batch
from tests.support import as_numpy, assert_close, assert_same_bits, random
from tiny_llm import kernels

SHAPES = [(4, 1), (2, 7), (3, 16), (8, 40), (4, 300)]  # (kernel width K, channels C)


def run(**arrays: mx.array) -> tuple[mx.array, mx.array]:
    y, states = kernels.causal_conv1d(**arrays)
    mx.eval(y, states)
    return y, states


@pytest.mark.parametrize("by_tap", [False, True], ids=["C×K", "K×C"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_reference(instruction_set, dtype, shape, by_tap):
    batch = ragged_batch([5, 1, 12])
    arrays = conv_problem(*shape, batch, dtype, by_tap)
    y, states = run(**arrays)
    x, weight, before = (as_numpy(arrays[name]) for name in ("x", "weight", "conv_states"))
    expected, after = causal_conv1d(x, weight, before, batch)
    assert y.dtype == mx.float32
    assert_close(y, mx.array(expected.astype(np.float32)), "y", ulps=16)
    np.testing.assert_array_equal(as_numpy(states), after)


def test_weight_in_float32(instruction_set, dtype):
    batch = ragged_batch([3, 4])
    arrays = conv_problem(4, 20, batch, dtype)
    arrays["weight"] = random(20, 4)
    expected, _ = causal_conv1d(
        as_numpy(arrays["x"]), as_numpy(arrays["weight"]), as_numpy(arrays["conv_states"]), batch
    )
    assert_close(run(**arrays)[0], mx.array(expected.astype(np.float32)), "y", ulps=16)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_bitwise_equal_for_any_chunk_size(instruction_set, dtype, chunk):
    arrays = conv_problem(4, 40, Batch((12,), (2,), (-1,) * 11 + (2,)), dtype)
    y, expected = run(**arrays)
    states, rows = arrays["conv_states"], []
    for t in range(0, 12, chunk):
        n = min(chunk, 12 - t)
        step = Batch((3, n), (5, 2), (-1, 5, -1) + (-1,) * (n - 1) + (2,))
        x = mx.concatenate([random(3, 40, dtype=dtype), arrays["x"][t : t + n]])
        part, states = run(x=x, weight=arrays["weight"], conv_states=states, **step.arrays)
        rows.append(part[3:])
    assert_same_bits(mx.concatenate(rows), y, "y")
    assert_same_bits(states[2], expected[2], "state")


def test_views(instruction_set, dtype):
    arrays = conv_problem(3, 24, ragged_batch([4, 2]), dtype)
    expected = run(**arrays)
    wide = mx.concatenate([arrays["x"]] * 2, axis=1)
    for name, view in {
        "x": wide[:, 24:],
        "weight": mx.repeat(arrays["weight"], 2, axis=1)[:, ::2],
        "conv_states": mx.contiguous(arrays["conv_states"].T).T,
        "write_slots": mx.repeat(arrays["write_slots"], 2)[::2],
    }.items():
        for actual, reference in zip(run(**{**arrays, name: view}), expected, strict=True):
            assert_same_bits(actual, reference, name)


def test_invalid_values_are_ignored(instruction_set):
    arrays = conv_problem(
        4, 20, Batch((2, 3), (SLOTS, -7), (SLOTS, -2, 99, -1, 2**31 - 1)), mx.float32
    )
    zeros = Batch((2, 3), (-1, -1), (-1,) * 5)
    y, states = run(**arrays)
    assert_same_bits(y, run(**{**arrays, **zeros.arrays})[0], "y from a zero state")
    assert_same_bits(states, arrays["conv_states"], "states")
    run(**{**arrays, "cu_seqlens": mx.array([-5, 3, 2**31 - 1])})
    run(**{**arrays, "cu_seqlens": mx.array([9, 1, -1])})


def test_donated_states_are_not_copied(on_cpu):
    states = mx.zeros((64, 3, 4096))  # 3 MB
    arrays = {"x": mx.ones((1, 4096)), "weight": mx.ones((4096, 4))}
    arrays |= Batch((1,), (7,), (7,)).arrays
    mx.eval(states, arrays)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for _ in range(3):
        for _ in range(2):
            y, states = kernels.causal_conv1d(conv_states=states, **arrays)
        mx.eval(y, states)
    assert mx.get_peak_memory() - before < 200_000
    assert states[7, :, 0].tolist() == [1.0] * 3


def test_shared_states_are_unchanged(instruction_set):
    arrays = conv_problem(4, 20, Batch((1,), (3,), (3,)), mx.float32)
    copy = as_numpy(arrays["conv_states"]).copy()
    new = run(**arrays)[1]
    np.testing.assert_array_equal(as_numpy(arrays["conv_states"]), copy)
    assert_same_bits(new[3, -1], arrays["x"][0], "newest input")


def test_no_elements(instruction_set, dtype):
    for T, C, S in [(0, 8, 2), (2, 0, 2), (2, 8, 0), (0, 0, 0)]:
        batch = Batch((T,) if T else (), (0,) if T else (), (0,) * T)
        x, weight, states = (mx.zeros(shape, dtype) for shape in ((T, C), (C, 4), (S, 3, C)))
        y, new = run(x=x, weight=weight, conv_states=states, **batch.arrays)
        assert (y.shape, new.shape) == ((T, C), (S, 3, C))
