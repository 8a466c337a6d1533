"""`flash_attention`: heads, chunks, layouts, non-finite keys."""

import mlx.core as mx
import numpy as np
import pytest

from tests.ops.attention_problems import MASKS, evaluated, make_mask, problem
from tests.support import (
    as_numpy,
    assert_same_bits,
    random,
)
from tiny_llm import TinyKvFullCache, flash_attention


def test_transposing_the_result_copies_nothing():
    query, key, value = problem(2, 2, 2, 5, 9, 16)
    out = flash_attention(query, key, value)
    mx.eval(out)
    before = mx.get_active_memory()
    back = out.swapaxes(1, 2).reshape(2, 5, 64)
    mx.eval(back)
    assert mx.get_active_memory() == before
    np.testing.assert_array_equal(as_numpy(back)[1, 4, 48:], as_numpy(out)[1, 3, 4])


def test_rows_are_head_invariant(instruction_set, dtype):
    query, key, value = problem(3, 4, 2, 9, 150, 72, dtype=dtype)
    together = evaluated(query, key, value)
    for h in range(4):
        own = slice(2 * h, 2 * h + 2)
        alone = evaluated(query[:, own], key[:, h : h + 1], value[:, h : h + 1])
        assert_same_bits(alone, together[:, own], f"head {h}")


@pytest.mark.parametrize("D", [24, 72, 128])
def test_rows_are_independent_of_the_number_of_queries(instruction_set, dtype, D):
    query, key, value = problem(1, 2, 2, 90, 200, D, dtype=dtype)
    together = evaluated(query, key, value, mask="causal")
    for first, count in ((0, 1), (1, 2), (7, 3), (20, 9), (50, 40)):
        visible = 110 + first + count
        some = query[:, :, first : first + count]
        alone = evaluated(some, key[:, :, :visible], value[:, :, :visible], mask="causal")
        expected = together[:, :, first : first + count]
        assert_same_bits(alone, expected, f"queries {first} to {first + count - 1}")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize("L", [2, 12, 43])
def test_nan_and_infinity_affect_no_query_that_does_not_see_them(
    instruction_set, dtype, bad, which, L
):
    """Causal: the last half of the queries sees keys with such elements, in their tile."""
    S, last = 59, L // 2
    query, key, value = problem(1, 2, 2, L, S, 72, dtype=dtype)
    expected = evaluated(query, key, value, mask="causal")
    arrays = {"key": key, "value": value}
    rows = mx.full((1, 2, last, 72), bad, dtype)
    arrays[which] = mx.concatenate([arrays[which][:, :, : S - last], rows], axis=2)
    actual = evaluated(query, **arrays, mask="causal")
    assert_same_bits(actual[:, :, :-last], expected[:, :, :-last], "queries before the keys")
    if which == "value":
        assert not np.isfinite(as_numpy(actual[:, :, -last:])).any()


def test_cache_is_read_in_place(instruction_set, dtype):
    cache = TinyKvFullCache()
    B, H, group, D = 2, 2, 2, 40
    for L in (70, 1, 3):
        projected = random(B, L, H * group, D, dtype=dtype)
        keys, values, S, mask = cache.update_and_fetch(
            random(B, H, L, D, dtype=dtype), random(B, L, H, D, dtype=dtype).swapaxes(1, 2),
            mask="causal",
        )  # fmt: skip
        query = projected.swapaxes(1, 2)
        actual = evaluated(query, keys, values, mask=mask)
        copies = (mx.contiguous(x) for x in (query, keys, values))
        assert_same_bits(actual, evaluated(*copies, mask=mask), f"{L} of {S} tokens")


def test_slices_are_not_copied():
    buffer = mx.zeros((1, 2, 4096, 64))  # 2 MB
    query = mx.zeros((1, 2, 1, 64))
    mx.eval(buffer, query)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(flash_attention(query, buffer[:, :, :4000], buffer[:, :, 96:4096]))
    assert mx.get_peak_memory() - before < 100_000


@pytest.mark.parametrize(
    "shape", [(0, 2, 2, 3, 5, 8), (2, 2, 2, 0, 5, 8), (2, 2, 2, 3, 0, 8), (0, 2, 0, 0, 0, 8)]
)
@pytest.mark.parametrize("mask", MASKS)
def test_empty_inputs(instruction_set, dtype, shape, mask):
    query, key, value = problem(*shape, dtype=dtype)
    B, H, group, L, S, D = shape
    out = evaluated(query, key, value, mask=make_mask(mask, B, H * group, L, S))
    assert out.shape == (B, H * group, L, D)
    assert not as_numpy(out).any(), "expected zeros for a sequence without keys"
