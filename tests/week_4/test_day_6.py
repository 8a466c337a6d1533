"""Week 4, day 6: vectorized flash attention and split keys."""

import mlx.core as mx
import numpy as np
import pytest

from tests.ops.attention_problems import assert_exact, evaluated, exact, problem
from tests.paging import cut_into_pages, padded
from tests.support import (
    as_numpy,
    assert_equal,
    assert_same_bits,
    assert_same_on_any_number_of_threads,
)
from tests.week_4.kernel_selection import kernel_fixture
from tiny_llm import kernels

# (batch size, KV heads, query heads per KV head, queries, keys, head size). Some head sizes are not
# multiples of a SIMD vector, and some tiles of keys and queries are partial.
SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (2, 1, 3, 1, 65, 7),
    (1, 2, 2, 3, 67, 80),
    (1, 1, 5, 9, 130, 128),
    (1, 1, 1, 2, 31, 250),
]
PART = 512  # keys per split, as in attention_week4.h
LONG = [(1, 1, 2, 1, S, 40) for S in (PART - 1, PART, PART + 1, 2 * PART + 77)]


scores = kernel_fixture("TINY_LLM_ATTENTION", "scores")
online = kernel_fixture("TINY_LLM_ATTENTION", "online")
split = kernel_fixture("TINY_LLM_ATTENTION", "split")


def assert_exact_but_for_rounding(shape, dtype, mask):
    query, key, value = problem(*shape, dtype=dtype)
    solution = exact(query, key, value, shape[-1] ** -0.5, mask)
    assert_exact(evaluated(query, key, value, mask=mask), *solution)


def assert_batch_invariant(S: int):
    """Asserts that batched, single-row and paged attention are bitwise equal."""
    lengths = [S, 1, 64, 0]
    query, key, value = problem(4, 2, 3, 9, S, 24, dtype=mx.bfloat16)
    together = evaluated(query, key, value, mask="causal", context_lens=lengths)
    alone = evaluated(query[:1], key[:1], value[:1], mask="causal")
    assert_same_bits(alone, together[:1], "a single sequence")
    token = evaluated(query[:1, :, 8:], key[:1], value[:1], mask="causal")
    assert_same_bits(token, together[:1, :, 8:], "its last token")
    dense = [(key[b, :, :length], value[b, :, :length]) for b, length in enumerate(lengths)]
    *pages, table = cut_into_pages(dense, 10)
    paged = kernels.paged_attention(query, *pages, padded(table), mx.array(lengths))
    mx.eval(paged)
    assert_same_bits(paged, together, "keys in pages of 10")


@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_task_1_is_exact_up_to_rounding(scores, dtype, shape, mask):
    assert_exact_but_for_rounding(shape, dtype, mask)


def test_task_1_scores_of_individual_keys(scores):
    """Key s has score s / 8 and a one-hot value: outputs are softmax weights."""
    S = 37
    query, key = mx.ones((1, 1, 1, S)), mx.zeros((1, 1, S, S))
    key[0, 0, :, S - 1] = mx.arange(S) / 8
    actual = as_numpy(evaluated(query, key, mx.eye(S)[None, None], 1.0))[0, 0, 0]
    expected = np.exp(np.arange(S) / 8)
    expected /= expected.sum()
    np.testing.assert_allclose(actual, expected, rtol=1e-5, err_msg="weights of keys 0 to 36")


def test_task_1_rows_and_array_masks(scores, monkeypatch):
    assert_batch_invariant(70)
    query, key, value = problem(1, 1, 2, 3, 70, 24)
    hidden = mx.arange(70) % 3 == 0
    actual = evaluated(query, key, value, mask=hidden)
    monkeypatch.setenv("TINY_LLM_ATTENTION", "loops")
    assert_same_bits(actual, evaluated(query, key, value, mask=hidden), "with an array mask")


def test_task_1_unknown_kernel_is_rejected(scores, monkeypatch):
    query, key, value = problem(1, 1, 1, 1, 3, 8)
    monkeypatch.setenv("TINY_LLM_CPU_ISA", "portable")
    with pytest.raises(ValueError, match="requires a vector instruction set, got portable"):
        evaluated(query, key, value)
    monkeypatch.setenv("TINY_LLM_ATTENTION", "flash")
    with pytest.raises(ValueError, match='must be loops, scores, online or split, got "flash"'):
        evaluated(query, key, value)


@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_task_2_is_exact_up_to_rounding(online, dtype, shape, mask):
    assert_exact_but_for_rounding(shape, dtype, mask)


def weights_next_to_zero_score(x: np.ndarray) -> np.ndarray:
    """2ˣ / (1 + 2ˣ): the softmax weight of score x · ln 2 beside a score of 0."""
    key = mx.zeros((len(x), 1, 2, 1))
    key[:, 0, 1, 0] = mx.array(x)
    value = mx.broadcast_to(mx.array([[0.0], [1.0]]), key.shape)
    one = mx.ones((len(x), 1, 1, 1))
    ln_2 = 0.693147182  # times log₂ e, this is exactly 1 in float32
    assert np.float32(ln_2) * np.float32(1.44269504) == 1
    return as_numpy(evaluated(one, key, value, ln_2)).reshape(-1)


def test_task_2_power_of_two_is_within_its_bound(online):
    """2ˣ has an error of at most 2.4e-7; sum and division add a rounding each."""
    x = np.concatenate([np.linspace(-1, 0, 4001), np.linspace(-125, -1, 999)]).astype(np.float32)
    exact_weights = 2.0 ** x.astype(np.float64)
    expected = exact_weights / (1 + exact_weights)
    error = np.abs(weights_next_to_zero_score(x) / expected - 1)
    worst = error.argmax()
    assert error[worst] <= 2.4e-7 + 2.0**-23, (
        f"2^{x[worst]}: expected an error of at most 3.6e-7, got {error[worst]:.1e}"
    )
    x = np.array([-126.5, -127, -200, -5000, -1e30], np.float32)
    actual = weights_next_to_zero_score(x)
    np.testing.assert_array_less(actual, 2.0**-125, err_msg=f"weights of 2^{x}: expected 0")
    assert (actual >= 0).all(), f"expected non-negative weights, got {actual}"


def test_task_2_increasing_scores_rescale_the_accumulator(online, dtype):
    """Every tile raises the maximum score and rescales the accumulator."""
    query, key, value = problem(1, 1, 1, 1, 300, 24, dtype=dtype)
    key[0, 0] = key[0, 0] * 0.1 + query[0, 0] * (mx.arange(300) / 100)[:, None].astype(dtype)
    assert_exact(evaluated(query, key, value), *exact(query, key, value, 24**-0.5, None))


def test_task_2_masked_and_nan_scores(online, dtype):
    query, key, value = problem(1, 1, 2, 3, 130, 24, dtype=dtype)
    expected = evaluated(query, key[:, :, :100], value[:, :, :100], mask="causal")
    key[:, :, 100:], value[:, :, 100:] = mx.nan, mx.nan
    actual = evaluated(query, key, value, mask="causal", context_lens=[100])
    assert_same_bits(actual, expected, "NaN after the last key")
    query, key, value = problem(1, 1, 2, 2, 90, 24, dtype=dtype)
    query[0, 1, 1, 3] = mx.nan
    finite = np.isfinite(as_numpy(evaluated(query, key, value))).all(axis=-1)
    assert_equal(finite.tolist(), [[[True, True], [True, False]]], "NaN only for query 1 of head 1")


def test_task_2_rows_are_batch_invariant(online):
    assert_batch_invariant(70)


@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("shape", [*SHAPES, *LONG], ids=str)
def test_task_3_is_exact_up_to_rounding(split, dtype, shape, mask):
    assert_exact_but_for_rounding(shape, dtype, mask)


@pytest.mark.parametrize("position", [3, PART + 3, 2 * PART + 3])
def test_task_3_maximum_in_any_split(split, position):
    query, key, value = problem(1, 1, 1, 1, 2 * PART + 77, 24)
    key[0, 0, position] = 2 * query[0, 0, 0]
    assert_exact(evaluated(query, key, value), *exact(query, key, value, 24**-0.5, None))


def test_task_3_single_split_and_masked_rows(split, monkeypatch):
    query, key, value = problem(1, 1, 2, 5, 3, 24)
    out = as_numpy(evaluated(query, key, value, mask="causal"))
    assert not out[:, :, :2].any(), "expected zeros for queries before the first key"
    assert np.isfinite(out).all()
    query, key, value = problem(1, 2, 2, 3, PART, 24, dtype=mx.bfloat16)
    actual = evaluated(query, key, value, mask="causal")
    monkeypatch.setenv("TINY_LLM_ATTENTION", "online")
    assert_same_bits(actual, evaluated(query, key, value, mask="causal"), "a single split")


def test_task_3_rows_are_batch_invariant(split):
    assert_batch_invariant(PART + 70)


def test_task_3_thread_count_changes_no_bits(split):
    evaluated(*problem(1, 1, 1, 1, 3, 8))  # raises here if the task is not implemented
    program = (
        "import mlx.core as mx, numpy as np, tiny_llm_ext as t; mx.random.seed(3);"
        "x = lambda *shape: mx.random.normal(shape).astype(mx.bfloat16);"
        "q, k, v = x(1, 4, 3, 80), x(1, 2, 1500, 80), x(1, 2, 1500, 80);"
        "y = t.flash_attention(q, k, v, 0.1, True, stream=mx.cpu).astype(mx.float32);"
        "print(t.num_threads(), hash(np.array(y).tobytes()))"
    )
    assert_same_on_any_number_of_threads(program)
