"""Week 2, day 4: flash attention on the CPU."""

import functools

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.attention_problems import MASKS, assert_exact, evaluated, exact, make_mask, problem
from tests.support import as_numpy, assert_close, assert_same_bits, bits, random
from tiny_llm import causal_mask, flash_attention, kernels, scaled_dot_product_attention_grouped

LENGTHS = [1, 2, 3, 7, 16, 33, 67, 128, 1000]

HEAD_SIZES = [1, 7, 64, 80, 128, 256, 512]

# Covers each number of queries and of keys, each head size and group size in several combinations.
SHAPES = [  # batch size, KV heads, query heads per KV head, queries, keys, head size
    (1 + i % 2, 1 + i % 3 // 2, 2 ** (i % 4), L, LENGTHS[(3 * i + 8) % 9], HEAD_SIZES[i % 6])
    for i, L in enumerate(LENGTHS[:7] * 2)
]

SHAPES += [
    (2, 2, 2, 1, 1000, 128),
    (1, 1, 1, 128, 1000, 7),
    (1, 1, 2, 128, 128, 64),
    (1, 1, 1, 1000, 33, 16),
]


@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (1, 2, 1)], ids=str)
def test_task_1_any_leading_dimensions(leading):
    query, *pair = (random(*leading, *shape) for shape in ((4, 5, 16), (2, 9, 16), (2, 9, 16)))
    for mask in (None, "causal", random(5, 9), random(*leading, 1, 5, 1)):
        expected = scaled_dot_product_attention_grouped(query, *pair, mask=mask)
        assert_close(flash_attention(query, *pair, mask=mask), expected, str(mask), ulps=16)


def test_task_1_is_grouped_attention():
    query, key, value = problem(2, 2, 3, 9, 20, 16)
    for mask in (None, "causal", causal_mask(9, 20, mx.float32)):
        expected = scaled_dot_product_attention_grouped(query, key, value, mask=mask)
        assert_close(flash_attention(query, key, value, mask=mask), expected, str(mask), ulps=16)
    expected = scaled_dot_product_attention_grouped(query, key, value, 0.5, "causal")
    assert_close(flash_attention(query, key, value, 0.5, "causal"), expected, "scale", ulps=16)
    query, key, value = problem(1, 2, 2, 5, 9, 16)
    seen = mx.random.uniform(shape=(5, 9)) < 0.5
    seen[:, 0] = True
    expected = mx.fast.scaled_dot_product_attention(
        query, key, value, scale=0.25, mask=seen, stream=mx.cpu
    )
    assert_close(flash_attention(query, key, value, mask=seen), expected, "boolean mask", ulps=16)


@functools.cache
def solved(shape, mask_kind, dtype):
    """Inputs and expected output, computed once for all instruction sets."""
    B, H, group, L, S, D = shape
    query, key, value = problem(*shape, dtype=dtype)
    mask = make_mask(mask_kind, B, H * group, L, S)
    return query, key, value, mask, exact(query, key, value, D**-0.5, mask)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_task_2_is_exact_up_to_rounding(instruction_set, dtype, shape, mask):
    query, key, value, made, solution = solved(shape, mask, dtype)
    assert_exact(evaluated(query, key, value, mask=made), *solution)


@settings(max_examples=60, deadline=None)
@given(
    B=st.integers(0, 3),
    H=st.integers(1, 3),
    group=st.integers(1, 5),
    L=st.integers(0, 140),
    S=st.integers(0, 200),
    D=st.integers(1, 96),
    mask=st.sampled_from(MASKS),
    scale=st.sampled_from([0.0, 0.125, -1.0, 3.0]),
    dtype=st.sampled_from([mx.float32, mx.float16, mx.bfloat16]),
)
def test_task_2_any_shape(B, H, group, L, S, D, mask, scale, dtype):
    mx.random.seed(0)  # for each example, so that Hypothesis can reproduce a failure
    query, key, value = problem(B, H, group, L, S, D, dtype=dtype)
    made = make_mask(mask, B, H * group, L, S)
    actual = flash_attention(query, key, value, scale, made)
    assert_exact(actual, *exact(query, key, value, scale, made))


@pytest.mark.parametrize("S", [1, 63, 64, 65, 300])
def test_task_2_rows_are_chunk_invariant(instruction_set, dtype, S):
    """Prefill in one chunk, several chunks or single tokens is bitwise equal."""
    query, key, value = problem(1, 2, 2, S, S, 40, dtype=dtype)
    whole = evaluated(query, key, value, mask="causal")
    for chunk in (1, 7, 64, 128):
        starts = range(0, S, chunk) if chunk > 1 else {0, S // 2, S - 1}
        for start in starts:
            end = min(start + chunk, S)
            arrays = query[:, :, start:end], key[:, :, :end], value[:, :, :end]
            part = evaluated(*arrays, mask="causal")
            assert_same_bits(part, whole[:, :, start:end], f"rows {start} to {end}")


def test_task_2_masked_keys_have_no_effect(instruction_set, dtype):
    """Masked keys, even NaN, are skipped, not multiplied by zero."""
    query, key, value = problem(1, 1, 2, 9, 200, 24, dtype=dtype)
    alone = evaluated(query, key[:, :, :130], value[:, :, :130], mask="causal")
    key[:, :, 130:] = mx.nan
    value[:, :, 130:] = mx.nan
    padded = mx.concatenate([query, random(1, 2, 70, 24, dtype=dtype)], axis=2)
    together = evaluated(padded, key, value, mask="causal")
    assert_same_bits(together[:, :, :9], alone, "causal")
    limited = evaluated(query, key, value, mask="causal", context_lens=[130])
    assert_same_bits(limited, alone, "context_lens")


def test_task_2_sinks_and_strides(instruction_set, dtype):
    query, key, value = problem(1, 2, 1, 5, 33, 16, dtype=dtype)
    wide = mx.contiguous(value.swapaxes(1, 2)).swapaxes(1, 2)  # strides unlike the keys'
    expected = evaluated(query, key, value)
    assert_same_bits(evaluated(query, key, wide), expected, "values of other strides")
    ones, sinks = mx.ones(value.shape, dtype), mx.array([-20.0, 20.0])
    zeros = mx.zeros(query.shape, dtype)
    attended = as_numpy(kernels.flash_attention(zeros, key, ones, 1.0, sinks=sinks))
    share = 33 / (33 + np.exp([-20.0, 20.0]))  # of the keys in the softmax's denominator
    np.testing.assert_allclose(attended[0, :, :, 0], share[:, None] * np.ones((1, 5)), atol=0.01)


def test_task_2_causal_mask_array_equals_causal(instruction_set, dtype):
    query, key, value = problem(1, 2, 2, 70, 150, 24, dtype=dtype)
    causal = evaluated(query, key, value, mask="causal")
    array = causal_mask(70, 150, mx.bfloat16)
    assert_same_bits(evaluated(query, key, value, mask=array), causal, "additive")
    assert_same_bits(evaluated(query, key, value, mask=array == 0), causal, "boolean")
    strided = mx.contiguous(array.T).T
    assert_same_bits(evaluated(query, key, value, mask=strided), causal, "a transposed mask")


@pytest.mark.parametrize("mask", [None, "causal", "array"])
@pytest.mark.parametrize("L", [1, 40])
def test_task_2_context_lens_equal_separate_sequences(instruction_set, dtype, mask, L):
    lengths = [0, 1, 64, 100, 150]
    query, key, value = problem(5, 2, 2, L, 150, 24, dtype=dtype)
    made = random(5, 1, L, 150) if mask == "array" else mask
    together = evaluated(query, key, value, mask=made, context_lens=lengths)
    assert not as_numpy(together[0]).any(), "expected zeros for a sequence without keys"
    for b, S in enumerate(lengths):
        row = slice(b, b + 1)
        own = made[row, :, :, :S] if isinstance(made, mx.array) else made
        alone = evaluated(query[row], key[row, :, :S], value[row, :, :S], mask=own)
        assert_same_bits(together[row], alone, f"{S} keys")
    for what, lens in (("an array", lengths), ("clamped", [-5, 1, 64, 100, 999])):
        as_array = mx.array(lens, dtype=mx.int32)
        actual = evaluated(query, key, value, mask=made, context_lens=as_array)
        assert_same_bits(actual, together, what)


def test_task_2_fully_masked_row_is_zero(instruction_set, dtype):
    query, key, value = problem(1, 1, 2, 70, 66, 24, dtype=dtype)
    for mask in ("causal", causal_mask(70, 66, mx.float32), causal_mask(70, 66, mx.float32) == 0):
        out = as_numpy(evaluated(query, key, value, mask=mask))
        assert not out[:, :, :4].any(), "expected zeros for queries before the first key"
        assert np.isfinite(out).all(), "expected finite values for the later queries"
    hidden = mx.full((70, 66), -mx.inf)
    assert not as_numpy(evaluated(query, key, value, mask=hidden)).any()


def test_task_2_masked_tiles_are_skipped(instruction_set):
    query, key, value = problem(1, 1, 1, 3, 200, 24)
    mask = mx.zeros((3, 200))
    mask[:, 64:128] = -mx.inf
    expected = evaluated(query, key, value, mask=mask)
    key[:, :, 64:128] = mx.nan
    value[:, :, 64:128] = mx.inf
    actual = evaluated(query, key, value, mask=mask)
    assert_same_bits(actual, expected, "NaN in a fully masked tile")


@pytest.mark.parametrize("bad", [mx.nan, mx.inf, -mx.inf])
def test_task_2_nan_and_infinity_stay_in_their_rows(instruction_set, dtype, bad):
    query, key, value = problem(2, 2, 2, 20, 90, 24, dtype=dtype)
    clean = bits(evaluated(query, key, value, mask="causal"))
    dirty = query + 0
    dirty[0, 1, 7, 3] = bad
    out = evaluated(dirty, key, value, mask="causal")
    hint = f"a query with {bad}: expected a non-finite result; a NaN score is not a masked key"
    assert not np.isfinite(as_numpy(out)[0, 1, 7]).all(), hint
    same = np.ones((2, 4, 20), bool)
    same[0, 1, 7] = False
    np.testing.assert_array_equal(bits(out)[same], clean[same])
    dirty = value + 0
    dirty[1, 0, 80, 5] = bad  # visible to rows 10 to 19 of the first two query heads
    out = evaluated(query, key, dirty, mask="causal")
    hint = f"a visible value of {bad}: expected a non-finite result"
    assert not np.isfinite(as_numpy(out)[1, :2, 10:, 5]).any(), hint
    same = np.ones((2, 4, 20, 24), bool)
    same[1, :2, 10:, 5] = False
    np.testing.assert_array_equal(bits(out)[same], clean[same])


def test_task_2_large_scores_do_not_overflow(instruction_set, dtype):
    query, key, value = problem(1, 1, 1, 4, 100, 16, dtype=dtype)
    out = as_numpy(evaluated(query * 100, key * 100, value))
    assert np.isfinite(out).all(), "expected finite values: is the maximum subtracted?"
    assert np.abs(out).max() <= np.abs(as_numpy(value)).max() * 1.01
