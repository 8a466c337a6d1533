"""The Metal kernels over pages in the emulator, against the CPU kernels."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import DTYPES, assert_close, random
from tiny_llm import kernels

from .support import DTYPE_NAMES, as_array, as_bound, empty, run

P, H, GROUP, PAGE, D = 9, 2, 2, 8, 40
TABLE = mx.array([[3, 1, -1], [7, -1, -1], [0, 5, 8], [2, 99, -1]], mx.int32)
LENS = mx.array([13, 0, 24, 9], mx.int32)  # the last one has a page that is not there


def attend(query, keys, values, strides, L, T, causal=True, cu_seqlens_q=None, **how):
    launch = kernels.extension().metal.paged_attention_simple_launch(
        H_q=H * GROUP, H=H, D=D, B=4, max_pages=3, P=P, page_size=PAGE, T=T, L=L,
        scale=D**-0.5, causal=causal, query_strides=strides, dtype=DTYPE_NAMES[query.dtype],
    )  # fmt: skip
    out = empty((T, H * GROUP, D), DTYPE_NAMES[query.dtype])
    cu_seqlens_q = LENS if cu_seqlens_q is None else cu_seqlens_q
    inputs = [as_bound(x) for x in (query, keys, values, TABLE, LENS, cu_seqlens_q)]
    run("paged_attention/paged_attention_simple.metal", launch, [*inputs, out], **how)
    return as_array(out)


@pytest.mark.parametrize("mode", ["plain", "asan", "race"])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
@pytest.mark.parametrize("causal", [True, False])
def test_paged_attention(mode, dtype, causal):
    L, H_q = 5, H * GROUP
    query = random(4, H_q, L, D, dtype=dtype)
    keys, values = (random(P, H, PAGE, D, dtype=dtype) for _ in range(2))
    strides = [H_q * L * D, L * D, D]
    actual = attend(query, keys, values, strides, L, 4 * L, causal, mode=mode)
    expected = kernels.extension().paged_attention(
        query, keys, values, TABLE, LENS, causal=causal, stream=mx.cpu
    )
    actual = actual.reshape(4, L, H_q, D).swapaxes(1, 2)
    assert_close(actual, expected, "paged_attention_simple", ulps=16)


@pytest.mark.parametrize("bounds", [[0, 3, 4, 9, 11], [2, 2, 9, 5, 10], [0, -4, 50, 1, 3]])
def test_the_ragged_form(bounds):
    T, H_q = 11, H * GROUP
    query = random(T, H_q, D)
    keys, values = random(P, H, PAGE, D), random(P, H, PAGE, D)
    bounds = mx.array(bounds, mx.int32)
    strides = [H_q * D, D, H_q * D]
    actual = attend(query, keys, values, strides, 0, T, cu_seqlens_q=bounds)
    expected = kernels.extension().paged_attention_varlen(
        query, keys, values, bounds, LENS, TABLE, stream=mx.cpu
    )
    assert_close(actual, expected, "paged_attention_simple, ragged", ulps=16)


@pytest.mark.parametrize("mode", ["plain", "asan", "race"])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=DTYPE_NAMES.get)
def test_paged_cache_write(mode, dtype):
    tokens, pages = random(2, 3, H, D, dtype=dtype), random(P, H, PAGE, D, dtype=dtype)
    slots = mx.array([[0, -1, 71], [72, 9, 40]], mx.int32)
    inside = tokens.swapaxes(1, 2)  # B×H×L×D
    expected = kernels.extension().paged_cache_write(pages, inside, slots, stream=mx.cpu)
    unsigned = np.uint32 if dtype == mx.float32 else np.uint16
    out = as_bound(pages).view(unsigned).copy()
    launch = kernels.extension().metal.paged_cache_write_launch(
        H=H, L=3, D=D, page_size=PAGE, tokens=6, places=P * PAGE,
        token_strides=[3 * H * D, D, H * D, 1], item_size=dtype.size,
    )  # fmt: skip
    arrays = [as_bound(tokens).view(unsigned), np.array(slots), out]
    run("paged_cache_write/paged_cache_write.metal", launch, arrays, mode)
    np.testing.assert_array_equal(out, as_bound(expected).view(unsigned))
