"""`flash_attention`: batch invariance, layouts and invalid arguments."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

from tests.ops.attention_problems import MASKS, assert_exact, evaluated, exact, make_mask, problem
from tests.support import (
    as_numpy,
    assert_same_bits,
    assert_same_on_any_number_of_threads,
    random,
)
from tiny_llm import TinyKvFullCache, flash_attention, kernels


def test_transposing_the_result_copies_nothing():
    query, key, value = problem(2, 2, 2, 5, 9, 16)
    out = flash_attention(query, key, value)
    mx.eval(out)
    before = mx.get_active_memory()
    back = out.swapaxes(1, 2).reshape(2, 5, 64)
    mx.eval(back)
    assert mx.get_active_memory() == before
    np.testing.assert_array_equal(as_numpy(back)[1, 4, 48:], as_numpy(out)[1, 3, 4])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": "Causal"}, 'expected mask None, "causal" or an array, got "Causal"'),
        ({"mask": mx.zeros((5, 9), mx.int32)}, "expected mask in bool, float32.*, got int32"),
        ({"mask": mx.zeros((5, 8))}, r"broadcastable to \(2,4,5,9\), got shape \(5,8\)"),
        ({"mask": mx.zeros((1, 2, 4, 5, 9))}, "broadcastable"),
        ({"query": mx.zeros((2, 4, 5, 16), mx.int32)}, "expected query in float32.*, got int32"),
        ({"key": mx.zeros((2, 2, 9, 16), mx.float16)}, "in the dtype of query, float32, got"),
        ({"value": mx.zeros((2, 2, 9, 16), mx.bfloat16)}, "in the dtype of query, float32, got"),
        ({"query": mx.zeros((5, 16))}, "expected query of shape N..×H_q×L×D, got shape"),
        ({"query": mx.array(1.0)}, "expected query of shape N..×H_q×L×D, got shape"),
        ({"key": mx.zeros((2, 9, 16))}, "expected key with the 4 dimensions of query"),
        ({"value": mx.zeros((2, 2, 8, 16))}, "expected value of the shape of key"),
        ({"query": mx.zeros((3, 4, 5, 16))}, r"expected key of shape \(3,2,9,16\)"),
        ({"query": mx.zeros((2, 4, 5, 15))}, r"expected key of shape \(2,2,9,15\)"),
        ({"query": mx.zeros((2, 3, 5, 16))}, "to divide the query heads, got 2 and 3"),
        ({"context_lens": [9]}, r"expected context_lens of shape \(2\).* got \(1\)"),
        ({"context_lens": [9, 10]}, r"context_lens from 0 to 9.* got \[9, 10\]"),
        ({"context_lens": [-1, 3]}, r"context_lens from 0 to 9.* got \[-1, 3\]"),
        ({"context_lens": mx.array([9.0, 9.0])}, "expected context_lens in int32, got float32"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_errors_name_the_argument(changes, message):
    query, key, value = problem(2, 2, 2, 5, 9, 16)
    arguments = {"query": query, "key": key, "value": value}
    with pytest.raises(ValueError, match=rf"\[flash_attention\] .*{message}"):
        flash_attention(**{**arguments, **changes})


@pytest.mark.parametrize("D", [0, 513])
def test_head_sizes_are_limited(D):
    x = mx.zeros((1, 1, 2, D))
    with pytest.raises(ValueError, match=f"a head size from 1 to 512, got {D}"):
        flash_attention(x, x, x)


def test_no_heads_and_two_masks():
    x = mx.zeros((1, 2, 3, 4))
    with pytest.raises(ValueError, match="to divide the query heads, got 0 and 2"):
        flash_attention(x, x[:, :0], x[:, :0])
    with pytest.raises(ValueError, match="either causal or a mask array, got both"):
        kernels.flash_attention(x, x, x, causal=True, mask=mx.zeros((3, 3)))
    with pytest.raises(ValueError, match="query with 4 dimensions if context_lens is given"):
        flash_attention(x[0], x[0], x[0], context_lens=[3])


def test_rows_are_batch_and_head_invariant(instruction_set, dtype):
    query, key, value = problem(3, 4, 2, 9, 150, 72, dtype=dtype)
    together = evaluated(query, key, value)
    for b, h in itertools.product(range(3), range(4)):
        of_query, of_key = slice(2 * h, 2 * h + 2), slice(h, h + 1)
        alone = evaluated(
            query[b : b + 1, of_query], key[b : b + 1, of_key], value[b, h][None, None]
        )
        assert_same_bits(alone, together[b : b + 1, of_query], f"sequence {b}, head {h}")


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


def test_bitwise_equal_for_any_thread_count():
    program = (
        "import mlx.core as mx, numpy as np, tiny_llm_ext as t; mx.random.seed(3);"
        "x = lambda *shape: mx.random.normal(shape).astype(mx.bfloat16);"
        "q, k, v = x(2, 4, 150, 80), x(2, 2, 333, 80), x(2, 2, 333, 80);"
        "y = t.flash_attention(q, k, v, 0.1, True, stream=mx.cpu).astype(mx.float32);"
        "print(t.num_threads(), hash(np.array(y).tobytes()))"
    )
    assert_same_on_any_number_of_threads(program)


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


@pytest.mark.parametrize("which", ["query", "key", "value"])
def test_any_strides_are_bitwise_equal(instruction_set, dtype, which):
    arrays = dict(zip(("query", "key", "value"), problem(2, 2, 2, 70, 70, 20, dtype), strict=True))
    expected = evaluated(**arrays)
    x = arrays[which]
    views = {
        "last dimension": mx.contiguous(x.swapaxes(2, 3)).swapaxes(2, 3),
        "first dimension": mx.contiguous(x.swapaxes(0, 2)).swapaxes(0, 2),
        "strided": mx.repeat(x, 2, axis=3)[..., ::2],
        "backwards": mx.contiguous(x[:, :, ::-1])[:, :, ::-1],
    }
    for name, view in views.items():
        assert_same_bits(evaluated(**{**arrays, which: view}), expected, name)
    broadcast = mx.broadcast_to(x[:1, :1, :1], x.shape)
    expected = evaluated(**{**arrays, which: mx.contiguous(broadcast)})
    assert_same_bits(evaluated(**{**arrays, which: broadcast}), expected, "broadcast")


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


def test_large_groups(instruction_set):
    """150 query heads share a key head, more than fit into a block of rows."""
    query, key, value = problem(1, 1, 150, 3, 70, 8)
    actual = evaluated(query, key, value, mask="causal")
    assert_exact(actual, *exact(query, key, value, 8**-0.5, "causal"))
