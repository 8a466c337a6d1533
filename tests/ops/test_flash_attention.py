"""`flash_attention`: heads, chunks, non-finite keys, and sinks: logits of the denominator only."""

import mlx.core as mx
import numpy as np
import pytest

from tests.ops.attention_problems import MASKS, evaluated, make_mask, problem
from tests.paging import cut_into_pages, padded, sequences
from tests.support import as_numpy, assert_close, assert_same_bits, random
from tiny_llm import causal_mask, flash_attention, kernels


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


def test_slices_are_not_copied():
    buffer = mx.zeros((1, 2, 4096, 64))  # 2 MB
    query = mx.zeros((1, 2, 1, 64))
    mx.eval(buffer, query)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(flash_attention(query, buffer[:, :, :4000], buffer[:, :, 96:4096]))
    assert mx.get_peak_memory() - before < 100_000


def attend(query, key, value, mask, sinks, **options):
    causal = isinstance(mask, str)
    mask = None if causal else mask
    return kernels.flash_attention(query, key, value, None, causal, mask, sinks=sinks, **options)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("L", [1, 21])
@pytest.mark.parametrize("D", [65, 256])
def test_sinks_equal_mlx(instruction_set, dtype, kind, L, D):
    """A row that sees no key is zero."""
    query, key, value = problem(2, 2, 3, L, 150, D, dtype=dtype)
    mask, sinks = make_mask(kind, 2, 6, L, 150), random(6, scale=4)
    actual = attend(query, key, value, mask, sinks)
    added = causal_mask(L, 150, mx.float32) if isinstance(mask, str) else mask
    expected = mx.fast.scaled_dot_product_attention(
        *(x.astype(mx.float32) for x in (query, key, value)),
        scale=D**-0.5,
        mask=added,
        sinks=sinks,
        stream=mx.cpu,
    )
    assert_close(actual, expected.astype(dtype), kind, ulps=16)
    if kind == "masked rows":
        assert not as_numpy(actual[:, :, ::3]).any()


def test_extreme_sinks(instruction_set, dtype):
    """A sink far below the scores changes nothing; one far above them leaves zeros."""
    query, key, value = problem(1, 2, 2, 5, 70, 32, dtype=dtype)
    plain = attend(query, key, value, "causal", None)
    low = attend(query, key, value, "causal", mx.full((4,), -1e4))
    assert_close(low, plain, "low sinks", ulps=2)
    assert not as_numpy(attend(query, key, value, "causal", mx.full((4,), 1e4))).any()


def test_dense_and_paged_sinks_have_the_same_bits(instruction_set, dtype):
    pairs, sinks = sequences([130], D=40, dtype=dtype), random(4, scale=4)
    keys, values, table = cut_into_pages(pairs, 16)
    query = random(1, 4, 33, 40, dtype=dtype)
    dense = attend(query, *(x[None] for x in pairs[0]), "causal", sinks)
    pages = keys, values, padded(table), mx.array([130])
    assert_same_bits(kernels.paged_attention(query, *pages, sinks=sinks), dense, "pages")
    lens = mx.array([130])
    given = attend(query, *(x[None] for x in pairs[0]), "causal", sinks, context_lens=lens)
    assert_same_bits(given, dense, "context_lens")
    mask = mx.broadcast_to(causal_mask(33, 130, mx.float32), (1, 4, 33, 130))
    both = attend(query, *(x[None] for x in pairs[0]), mask, sinks, context_lens=lens)
    assert_same_bits(both, dense, "mask and context_lens")
