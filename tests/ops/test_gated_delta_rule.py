"""`gated_delta_rule`: reference, state slots, chunking, batch invariance."""

import mlx.core as mx
import numpy as np
import pytest

from tests.ops.recurrent_problems import (
    SLOTS,
    Arrays,
    Batch,
    delta_problem,
    gated_delta_rule,
    ragged_batch,
)
from tests.support import (
    as_numpy,
    assert_close,
    assert_same_bits,
)
from tiny_llm import kernels

SHAPES = [  # key heads, value heads, key head size, value head size
    (1, 1, 1, 1),
    (2, 4, 6, 10),
    (1, 4, 8, 32),
    (2, 2, 33, 70),
    (1, 2, 128, 128),
    (1, 1, 256, 64),
]


def run(arrays: Arrays, num_k_heads: int) -> tuple[mx.array, mx.array]:
    o, states = kernels.gated_delta_rule(**arrays, num_k_heads=num_k_heads)
    mx.eval(o, states)
    return o, states


def assert_equals_reference(arrays: Arrays, num_k_heads: int, batch: Batch) -> None:
    """Allows 16 ulps, because float32 sums over the key head size are rounded."""
    given = {name: as_numpy(array) for name, array in arrays.items() if name not in batch.arrays}
    expected = gated_delta_rule(**given, num_k_heads=num_k_heads, batch=batch)
    for name, actual, reference in zip("os", run(arrays, num_k_heads), expected, strict=True):
        assert_close(actual, mx.array(reference.astype(np.float32)), name, ulps=16)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_reference(instruction_set, dtype, shape):
    batch = ragged_batch([5, 1, 12])
    assert_equals_reference(delta_problem(*shape, batch, dtype), shape[0], batch)


def test_long_sequence(instruction_set):
    batch = Batch((700,), (1,), (-1,) * 699 + (1,))
    arrays = delta_problem(1, 2, 16, 40, batch, mx.bfloat16)
    arrays["A_log"] -= 5  # slow decay, so that the state depends on hundreds of tokens
    assert_equals_reference(arrays, 1, batch)


def test_extreme_gates(instruction_set, dtype):
    """γ and β of 0 and 1; the smallest and largest inputs with finite squares."""
    batch = Batch((6,), (0,), (1,) * 6)
    arrays = delta_problem(1, 1, 8, 8, batch, dtype)
    arrays["a"] = mx.array([[-60.0], [60], [0], [-60], [60], [0]]).astype(dtype)
    arrays["b"] = mx.array([[60.0], [-60], [60], [60], [-60], [0]]).astype(dtype)
    arrays["A_log"] = mx.array([3.0])
    scale = mx.array([1.0, 1e-12, 0, 1e3, 1e-4, 1])[:, None]
    arrays["qkv"] = mx.concatenate([arrays["qkv"][:, :16] * scale, arrays["qkv"][:, 16:]], axis=1)
    assert_equals_reference(arrays, 1, batch)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_bitwise_equal_for_any_chunk_size(instruction_set, dtype, chunk):
    whole = delta_problem(1, 2, 24, 40, Batch((12,), (2,), (-1,) * 11 + (2,)), dtype)
    o, expected = run(whole, 1)
    states, rows = whole["states"], []
    for t in range(0, 12, chunk):
        n = min(chunk, 12 - t)
        batch = Batch((3, n), (5, 2), (-1, 5, -1) + (-1,) * (n - 1) + (2,))
        arrays = delta_problem(1, 2, 24, 40, batch, dtype)
        arrays |= {name: whole[name] for name in ("A_log", "dt_bias")} | {"states": states}
        for name in ("qkv", "a", "b"):
            arrays[name] = mx.concatenate([arrays[name][:3], whole[name][t : t + n]])
        part, states = run(arrays, 1)
        rows.append(part[3:])
    assert_same_bits(mx.concatenate(rows), o, "o")
    assert_same_bits(states[2], expected[2], "state")


def test_every_state_of_a_chunk_can_be_stored(instruction_set):
    """The state after token i equals that of a step that ends with token i."""
    arrays = delta_problem(1, 2, 8, 40, Batch((7,), (8,), tuple(range(7))), mx.float32)
    states = run(arrays, 1)[1]
    for i in range(7):
        short = {name: arrays[name][: i + 1] for name in ("qkv", "a", "b")}
        batch = Batch((i + 1,), (8,), (-1,) * i + (8,))
        after = run({**arrays, **short, **batch.arrays}, 1)[1]
        assert_same_bits(states[i], after[8], f"state after token {i}")
    assert_same_bits(states[8], arrays["states"][8], "read slot")


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
            o, states = kernels.gated_delta_rule(**given, num_k_heads=1)
            del given
            mx.eval(o, states)
            results += [o, mx.array(states)]
    for actual, expected in zip(results[4:], results[:4], strict=True):
        assert_same_bits(actual, expected, "o or states")


def test_views(instruction_set, dtype):
    arrays = delta_problem(1, 2, 8, 24, ragged_batch([4, 2]), dtype)
    expected = run(arrays, 1)
    both = mx.concatenate([arrays["a"], arrays["b"]], axis=1)
    for name, view in {
        "qkv": mx.contiguous(arrays["qkv"].T).T,
        "b": both[:, 2:],
        "A_log": mx.repeat(arrays["A_log"], 2)[::2],
        "states": mx.contiguous(arrays["states"].T).T,
        "read_slots": mx.repeat(arrays["read_slots"], 2)[::2],
    }.items():
        for actual, reference in zip(run({**arrays, name: view}, 1), expected, strict=True):
            assert_same_bits(actual, reference, name)


def test_invalid_values_are_ignored(instruction_set):
    invalid = Batch((2, 3), (SLOTS, -7), (SLOTS, -2, 99, -1, 2**31 - 1))
    arrays = delta_problem(1, 1, 8, 40, invalid, mx.float32)
    zeros = Batch((2, 3), (-1, -1), (-1,) * 5)
    o, states = run(arrays, 1)
    assert_same_bits(o, run({**arrays, **zeros.arrays}, 1)[0], "o from a zero state")
    assert_same_bits(states, arrays["states"], "states")
    run({**arrays, "cu_seqlens": mx.array([-5, 3, 2**31 - 1])}, 1)
    run({**arrays, "cu_seqlens": mx.array([9, 1, -1])}, 1)


def test_donated_states_are_not_copied(on_cpu):
    states = mx.zeros((64, 4, 32, 128))  # 4 MB
    batch = Batch((1,), (7,), (7,))
    arrays = delta_problem(1, 4, 32, 128, batch, mx.float32) | {"states": None}
    mx.eval(states, arrays)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for _ in range(3):
        for _ in range(2):
            o, states = kernels.gated_delta_rule(**{**arrays, "states": states}, num_k_heads=1)
        mx.eval(o, states)
    assert mx.get_peak_memory() - before < 200_000


def test_no_elements(instruction_set):
    for T, H, D, S in [(0, 2, 8, 2), (2, 2, 0, 2), (2, 2, 8, 0), (0, 2, 0, 0)]:
        batch = Batch((T,) if T else (), (0,) if T else (), (0,) * T)
        arrays = delta_problem(1, H, D, D, batch, mx.float32) | {"states": mx.zeros((S, H, D, D))}
        o, states = run(arrays, 1)
        assert (o.shape, states.shape) == ((T, H, D), (S, H, D, D))


@pytest.mark.parametrize("value", [mx.nan, mx.inf])
def test_nan_and_infinity_stay_in_their_head(instruction_set, value):
    arrays = delta_problem(2, 2, 8, 40, ragged_batch([4, 2]), mx.float32)
    clean = as_numpy(run(arrays, 2)[0])
    arrays["qkv"][1, 9] = value  # an element of head 1's query in the first sequence
    dirty = as_numpy(run(arrays, 2)[0])
    assert np.isnan(dirty[1, 1]).all()
    dirty[1, 1] = clean[1, 1]
    np.testing.assert_array_equal(dirty, clean)
