"""flash_attention's Metal kernels, compared with the CPU kernel."""

import mlx.core as mx
import numpy as np
import pytest

from tests.ops import attention_problems as masks
from tests.ops.attention_problems import MASKS, problem
from tests.support import DTYPES, assert_close, assert_same_bits, random
from tiny_llm import kernels

from .attention import VARIANTS, attend
from .support import DTYPE_NAMES, ORDERS

# Batch size, KV heads, query heads per KV head, queries, keys, head size. Covers odd lengths, heads
# smaller than a simdgroup, more than one split.
SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (2, 1, 3, 3, 7, 7),
    (1, 2, 2, 5, 33, 64),
    (1, 1, 2, 33, 67, 80),
    (2, 1, 4, 2, 70, 128),
    (1, 1, 1, 40, 19, 256),
    (1, 1, 2, 9, 21, 511),
    (1, 1, 3, 2, 259, 512),
    (1, 1, 2, 1, 600, 16),
    (1, 2, 3, 4, 600, 24),
]


def make_mask(kind, shape):
    B, H, group, L, S, _ = shape
    return masks.make_mask(kind, B, H * group, L, S, mx.bfloat16)


def expected(query, key, value, mask=None, context_lens=None, sinks=None):
    causal = isinstance(mask, str)
    options = {"causal": causal, "mask": None if causal else mask, "context_lens": context_lens}
    return kernels.flash_attention(query, key, value, **options, sinks=sinks, stream=mx.cpu)


def skip_large_head(variant, D):
    if variant == "readable" and D > 256:
        pytest.skip("the readable kernel supports D up to 256")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_sinks", [False, True], ids=["", "sinks"])
def test_every_mask(variant, kind, shape, has_sinks):
    """A sink counts once, however many simdgroups and splits share a row's keys."""
    skip_large_head(variant, shape[-1])
    query, key, value = problem(*shape, mx.float32)
    mask, sinks = make_mask(kind, shape), random(query.shape[1], scale=4) if has_sinks else None
    actual = attend(variant, query, key, value, mask, sinks=sinks, order=("random", 1))
    reference = expected(query, key, value, mask, sinks=sinks)
    assert_close(actual, reference, f"{variant}, mask {kind}", ulps=16)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
@pytest.mark.parametrize("D", [10, 128, 200, 510, 512])
def test_every_dtype_and_head_size(variant, dtype, D):
    skip_large_head(variant, D)
    query, key, value = problem(1, 2, 2, 4, 35, D, dtype)
    for mask in (None, "causal"):
        actual = attend(variant, query, key, value, mask)
        assert actual.dtype == dtype
        assert_close(actual, expected(query, key, value, mask), f"{variant}, D {D}", ulps=16)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_prefix_of_a_longer_buffer(variant, aligned, mask):
    """Keys and values are in a larger cache, with a context length per sequence."""
    B, H, group, L, S, C, D = 3, 2, 2, 3, 40, 48, 64
    query, key, value = problem(B, H, group, L, C, D, mx.float16)
    beyond = mx.arange(C)[:, None] >= S  # positions whose keys and values must not be read
    key, value = (mx.where(beyond, mx.array(mx.nan, x.dtype), x) for x in (key, value))
    lens = mx.array([0, 40, 17])
    actual = attend(variant, query, key, value, mask, lens, S, aligned)
    reference = expected(query, key[:, :, :S], value[:, :, :S], mask, lens)
    assert_close(actual, reference, variant, ulps=16)
    assert not actual[0].any(), "expected zeros for a sequence without keys"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["causal", "masked rows"])
def test_bitwise_equal_for_any_lane_order(variant, kind):
    shape = (1, 1, 3, 11, 75, 48)
    query, key, value = problem(*shape, mx.bfloat16)
    mask = make_mask(kind, shape)
    first, *others = [attend(variant, query, key, value, mask, order=order) for order in ORDERS]
    for other in others:
        assert_same_bits(other, first, "another order")


@pytest.mark.parametrize("mode", ["asan", "race"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("shape", "kind", "dtype"),
    [((1, 1, 2, 5, 41, 33), "causal", mx.bfloat16), ((1, 1, 1, 9, 263, 16), "boolean", mx.float32)],
    ids=str,
)
def test_no_memory_fault_or_race(mode, variant, shape, kind, dtype):
    query, key, value = problem(*shape, dtype)
    mask = make_mask(kind, shape)
    actual = attend(variant, query, key, value, mask, mode=mode)
    assert_close(actual, expected(query, key, value, mask), f"{variant} in mode {mode}", ulps=16)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_are_batch_invariant(variant):
    """Covers chunked prefill, a larger cache and a larger batch."""
    query, key, value = problem(2, 1, 2, 36, 300, 32, mx.float32)
    whole = attend(variant, query, key, value, "causal")
    alone = attend(variant, query[1:], key[1:], value[1:], "causal")
    assert_same_bits(alone, whole[1:], "alone")
    last = attend(variant, query[:, :, -5:], key, value, "causal")
    assert_same_bits(last, whole[:, :, -5:], "last row of a prompt")
    first = attend(variant, query[:, :, :30], key, value, "causal", S=294)
    assert_same_bits(first, whole[:, :, :30], "first chunk of a prompt")
    few = query[:, :, :4], key, value, "causal", mx.array([20, 240])
    one_split, two = attend(variant, *few, S=250), attend(variant, *few)
    assert_same_bits(one_split, two, "one split instead of two")


@pytest.mark.parametrize("variant", VARIANTS)
def test_infinite_and_masked_scores(variant):
    query, key, value = problem(1, 1, 1, 3, 9, 16, mx.float32)
    key[:, :, 4] = mx.inf
    query[:, :, 1] = mx.nan
    for mask in (None, mx.array([True] * 4 + [False] + [True] * 4)):
        actual = attend(variant, query, key, value, mask)
        reference = expected(query, key, value, mask)
        np.testing.assert_array_equal(mx.isnan(actual).tolist(), mx.isnan(reference).tolist())
