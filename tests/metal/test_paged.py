"""Paged Metal kernels, compared with the CPU and contiguous attention."""

import mlx.core as mx
import numpy as np
import pytest

from tests.paging import cut_into_pages, free_pages_before_window, padded, sequences
from tests.support import DTYPES, assert_close, bits, random
from tiny_llm import kernels
from tiny_llm.kv_storage.int8_rows import quantize_rows

from .attention import attend
from .paged import paged_attend, params_of
from .support import DTYPE_NAMES, ORDERS, gpu_results

P, H, GROUP, PAGE, D = 9, 2, 2, 8, 40
TABLE = mx.array([[3, 1, -1], [7, -1, -1], [0, 5, 8], [2, 99, -1]], mx.int32)
# Tokens per sequence; the last sequence has an invalid page, 99.
LENS = mx.array([13, 0, 24, 9], mx.int32)

VARIANTS = ["readable", "fast"]


def dense_variant(L):
    """Dense kernel that flash_attention's encoder selects for L queries."""
    return "decode" if kernels.extension().metal.attention_is_decode(L) else "tile"


def dense(query, pair, **how):
    """Attention of a single sequence with the dense kernel: H_q×L×D from H×S×D."""
    key, value = (x[None] if x.shape[1] else mx.zeros((1, *x.shape[:1], 1, x.shape[2]), x.dtype)
                  for x in pair)  # fmt: skip
    variant, lens = dense_variant(query.shape[1]), mx.array([pair[0].shape[1]])
    return attend(variant, query[None], key, value, "causal", lens, **how)[0]


def ragged_on_cpu(query, keys, values, bounds, contexts, table, **options):
    pages = keys, values, mx.array(bounds), mx.array(contexts), table
    return kernels.extension().paged_attention_varlen(query, *pages, **options, stream=mx.cpu)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mode", ["plain", "asan", "race"])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
@pytest.mark.parametrize("causal", [True, False])
def test_paged_attention(variant, mode, dtype, causal):
    """Includes the NaNs that invalid block table entries cause."""
    for L in (5, 9) if variant == "fast" else (5,):
        query = random(4, H * GROUP, L, D, dtype=dtype)
        keys, values = (random(P, H, PAGE, D, dtype=dtype) for _ in range(2))
        actual = paged_attend(variant, query, keys, values, TABLE, LENS, None, causal, mode=mode)
        expected = kernels.extension().paged_attention(
            query, keys, values, TABLE, LENS, causal=causal, stream=mx.cpu
        )
        assert_close(actual, expected, f"{variant}, {L} queries", ulps=16)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "bounds", [[0, 3, 4, 9, 23], [2, 2, 15, 5, 20], [0, -4, 50, 1, 3], [0, 0, 0, 9, 18]]
)
def test_ragged_form(variant, bounds):
    """Includes decreasing sequence bounds and tokens outside all sequences."""
    T = 23
    query = random(T, H * GROUP, D)
    keys, values = random(P, H, PAGE, D), random(P, H, PAGE, D)
    bounds = mx.array(bounds, mx.int32)
    actual = paged_attend(variant, query, keys, values, TABLE, LENS, bounds)
    expected = ragged_on_cpu(query, keys, values, bounds, LENS, TABLE)
    assert_close(actual, expected, f"{variant}, ragged", ulps=16)


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
@pytest.mark.parametrize("D", [1, 33, 40, 64, 128, 256, 510])
@pytest.mark.parametrize("L", [2, 9])
def test_paged_is_bitwise_equal_to_contiguous(dtype, D, L):
    """Covers no keys, fewer keys than queries, about a page, and several splits."""
    page_size = {1: 128, 33: 3, 40: 1, 64: 16, 128: 16, 256: 3, 510: 16}[D]
    contexts = [0, 1, page_size - 1, page_size, page_size + 1, 259 if D < 100 else 40]
    group = 3 if D == 33 else 2
    pairs = sequences(contexts, 1, D, dtype)
    keys, values, table = cut_into_pages(pairs, page_size)
    query = random(len(contexts), group, L, D, dtype=dtype)
    actual = paged_attend("fast", query, keys, values, padded(table), contexts)
    longest = max(contexts)
    buffers = [
        mx.stack([mx.concatenate([x, mx.full((1, longest - x.shape[1], D), mx.nan, dtype)], axis=1)
                  for x in part])
        for part in zip(*pairs, strict=True)
    ]  # fmt: skip
    expected = attend(dense_variant(L), query, *buffers, "causal", mx.array(contexts))
    assert mx.all(mx.isfinite(actual)).item(), "expected unused slots not to be read"
    np.testing.assert_array_equal(bits(actual), bits(expected))


# (queries, keys) per sequence: decode, chunks, no queries, more queries than keys. A query has two
# rows, one per head: 6 and 18 rows are not multiples of 8, and 82 rows take two blocks of 64.
MIXED = [(1, 30), (41, 57), (0, 9), (8, 8), (1, 301), (9, 4), (12, 290), (3, 3), (1, 1)]


@pytest.mark.parametrize("page_size", [1, 3, 16, 128])
def test_ragged_rows_are_batch_invariant(page_size):
    """Rows are bitwise equal to the dense kernel's on single sequences."""
    D, group, contexts = 16, 2, [S for _, S in MIXED]
    pairs = sequences(contexts, 1, D)
    keys, values, table = cut_into_pages(pairs, page_size, seed=page_size)
    queries = [random(group, L, D) for L, _ in MIXED]
    bounds = np.cumsum([0, *(L for L, _ in MIXED)])
    query = mx.concatenate(queries, axis=1).swapaxes(0, 1)
    table = padded(table, extra=page_size % 5)
    actual = paged_attend("fast", query, keys, values, table, contexts, bounds)
    for row, (alone, pair) in enumerate(zip(queries, pairs, strict=True)):
        if alone.shape[1]:
            mine = actual[bounds[row] : bounds[row + 1]].swapaxes(0, 1)
            what = f"sequence {row} with (queries, keys) = {MIXED[row]}"
            np.testing.assert_array_equal(bits(mine), bits(dense(alone, pair)), what)


@pytest.mark.parametrize("page_size", [3, 16, 128])
@pytest.mark.parametrize("window", [0, 1, 20, 31, 290])
@pytest.mark.parametrize("is_int8", [False, True], ids=["", "int8"])
@pytest.mark.parametrize("has_sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("mode", ["plain", "asan", "race"])
def test_windows_and_sinks(page_size, window, is_int8, has_sinks, mode):
    """Pages before the window are freed, and the kernel must not read them.

    The first split of a sequence has its sinks, even if all keys of the split are hidden.
    """
    lengths, contexts = zip(*MIXED, (2, 700), strict=True)
    keys, values, table = cut_into_pages(sequences(contexts, 1, 16), page_size, seed=page_size)
    if is_int8:
        keys, values = (quantize_rows(mx.nan_to_num(x)) for x in (keys, values))
    bounds = np.cumsum([0, *lengths]).astype(np.int32)
    query, sinks = random(int(bounds[-1]), 2, 16), random(2) if has_sinks else None
    options = {"window": window, "sinks": sinks}
    expected = ragged_on_cpu(query, keys, values, bounds, contexts, padded(table), **options)
    *pages, rows = keys, values, padded(table)
    if window:
        *pages, rows = free_pages_before_window(
            (keys, values), table, lengths, contexts, page_size, window
        )
    actual = paged_attend("fast", query, *pages, rows, contexts, bounds, mode=mode, **options)
    assert_close(actual, expected, f"window of {window}", ulps=16)
    if has_sinks and window == 0 and not is_int8:
        readable = paged_attend("readable", query, *pages, rows, contexts, bounds, sinks=sinks)
        assert_close(readable, expected, "readable", ulps=16)
    for row, L in enumerate(lengths) if mode == "plain" else ():
        own = slice(bounds[row], bounds[row + 1])
        one = slice(row, row + 1)
        alone = actual[own]
        if L:
            alone = paged_attend(
                "fast", query[own], *pages, rows[one], contexts[one], [0, L], **options
            )
        what = f"sequence {row} with (queries, keys) = {L, contexts[row]}"
        np.testing.assert_array_equal(bits(actual[own]), bits(alone), what)


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
@pytest.mark.parametrize("L", [1, 8, 9, 40])
@pytest.mark.parametrize("mode", ["plain", "race"])
def test_sliding_window_in_a_batch(dtype, L, mode):
    """A missing page inside a sequence's window makes all of its rows NaN."""
    contexts, window, page_size = [300, 41], 33, 16
    keys, values, table = cut_into_pages(sequences(contexts, 1, 40, dtype), page_size)
    keys, values = mx.nan_to_num(keys), mx.nan_to_num(values)
    query = random(2, 4, L, 40, dtype=dtype)
    for of in (lambda x: x, quantize_rows):
        pages = of(keys), of(values)
        for missing in (0, len(table[0]) - 2):
            rows = padded([[-1 if i == missing else p for i, p in enumerate(table[0])], table[1]])
            actual = paged_attend("fast", query, *pages, rows, contexts, mode=mode, window=window)
            expected = kernels.extension().paged_attention(
                query, *pages, rows, mx.array(contexts), window=window, stream=mx.cpu
            )
            assert_close(actual, expected, f"{L} queries, page {missing} missing", ulps=32)
            assert mx.isnan(actual[0]).all().item() == (missing > 0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_sequences(seed):
    """A step may have more sequences (71) than a simdgroup has lanes (32)."""
    rng = np.random.default_rng(seed)
    B, D, group, page_size = 71, 4, (1, 3, 5)[seed - 1], 4
    lengths = rng.choice([0, 1, 1, 1, 2, 8, 9, 30], B)
    contexts = np.maximum(lengths + rng.integers(-2, 9, B), 0).tolist()
    keys, values, table = cut_into_pages(sequences(contexts, 1, D), page_size)
    bounds, table = np.cumsum([0, *lengths]).astype(np.int32), padded(table)
    query = random(int(bounds[-1]), group, D)
    if seed == 3:
        bounds[[20, 32, 50]] = 1  # decreasing bounds: sequences 19, 31 and 49 own no tokens
    actual = paged_attend("fast", query, keys, values, table, contexts, bounds)
    expected = ragged_on_cpu(query, keys, values, bounds, contexts, table)
    assert_close(actual, expected, "71 sequences", ulps=16)


@pytest.mark.parametrize("missing", [0, 9, 17])
@pytest.mark.parametrize("L", [1, 9])
def test_missing_page_is_nan_in_every_row(missing, L):
    """The missing page may be in any split, even after a row's visible keys."""
    D, page_size, contexts = 8, 32, [550, 550]
    pairs = sequences(contexts, 1, D)
    keys, values, table = cut_into_pages(pairs, page_size)
    table[0][missing] = len(keys)
    query = random(2, 2, L, D)
    actual = paged_attend("fast", query, keys, values, padded(table), contexts)
    assert mx.all(mx.isnan(actual[0])).item()
    np.testing.assert_array_equal(bits(actual[1]), bits(dense(query[1], pairs[1])))


@pytest.mark.parametrize("kernel", ["fast", "readable"])
@pytest.mark.parametrize("L", [1, 9])
def test_context_beyond_the_block_table_is_nan_in_every_row(kernel, L):
    D, page_size, contexts = 8, 32, [544, 550]
    keys, values, table = cut_into_pages(sequences(contexts, 1, D), page_size)
    query, room = random(2, 2, L, D), len(table[1]) * page_size
    actual = paged_attend(kernel, query, keys, values, padded(table), [544, room + 1])
    expected = paged_attend(kernel, query, keys, values, padded(table), contexts)
    assert mx.all(mx.isnan(actual[1])).item()
    np.testing.assert_array_equal(bits(actual[0]), bits(expected[0]))


def test_partial_results_are_bounded():
    """Partial results are allocated for at most eight queries of each sequence."""
    keys, table = mx.zeros((P, H, PAGE, D)), mx.zeros((3, 400), mx.int32)
    params = params_of(mx.zeros((2000, H * GROUP, D)), keys, table)
    assert params.partial_rows == 3 * 8 * H * GROUP
    params = params_of(mx.zeros((3, H * GROUP, D)), keys, table)
    assert params.partial_rows == 3 * H * GROUP


@pytest.mark.parametrize("aligned", [True, False])
def test_bitwise_equal_for_any_lane_order(aligned):
    lengths, contexts, dtype = [1, 10, 2], [270, 21, 3], mx.bfloat16
    keys, values, table = cut_into_pages(sequences(contexts, 1, 36, dtype), 5)
    query = random(sum(lengths), 2, 36, dtype=dtype)
    bounds = np.cumsum([0, *lengths])
    first, *others = [
        bits(paged_attend("fast", query, keys, values, padded(table), contexts, bounds,
                                aligned=aligned, order=order))
        for order in ORDERS
    ]  # fmt: skip
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("mode", ["asan", "race"])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=DTYPE_NAMES.get)
def test_no_memory_fault_or_race(mode, dtype):
    """Uses the pool's last page and last table entry, so overruns are detected."""
    lengths, contexts = [1, 11, 4, 0], [263, 17, 3, 5]
    keys, values, table = cut_into_pages(sequences(contexts, 1, 33, dtype), 7, spare=0)
    query = random(sum(lengths), 2, 33, dtype=dtype)
    bounds, table = np.cumsum([0, *lengths]).astype(np.int32), padded(table)
    actual = paged_attend("fast", query, keys, values, table, contexts, bounds, mode=mode)
    expected = ragged_on_cpu(query, keys, values, bounds, contexts, table)
    assert_close(actual, expected, f"fast in mode {mode}", ulps=16)


@pytest.mark.parametrize("mode", ["plain", "asan"])
@pytest.mark.parametrize("B", [0, 2])
def test_unowned_tokens_are_zero(mode, B):
    """Covers a batch without sequences, whose context lengths must not be read."""
    keys = random(P, H, PAGE, D)
    table = mx.zeros((B, 40), mx.int32)
    query, bounds = random(17, H * GROUP, D), [5, 7, 9][: B + 1]
    actual = paged_attend("fast", query, keys, keys, table, [3, 3][:B], bounds, mode=mode)
    unowned = mx.concatenate([actual[:5], actual[5 + 2 * B :]])
    assert mx.array_equal(unowned, mx.zeros_like(unowned))
    assert mx.all(mx.isfinite(actual)).item()


@pytest.mark.parametrize("mode", ["plain", "asan", "race"])
@pytest.mark.parametrize(("dtype", "D"), [(mx.float32, 33), (mx.float16, 40), (mx.bfloat16, 128)])
@pytest.mark.parametrize("L", [5, 9])
def test_int8_pages(mode, dtype, D, L):
    """Includes the NaNs that invalid block table entries cause."""
    query = random(4, H * GROUP, L, D, dtype=dtype)
    keys, values = (quantize_rows(random(P, H, PAGE, D)) for _ in range(2))
    padded = (mx.pad(rows, [(0, 0)] * 3 + [(0, 4)]) for rows in (keys, values))
    actual = paged_attend("fast", query, *padded, TABLE, LENS, None, mode=mode)
    expected = kernels.extension().paged_attention(
        query, keys, values, TABLE, LENS, causal=True, stream=mx.cpu
    )
    assert_close(actual, expected, f"{L} queries", ulps=32)


@pytest.mark.parametrize("mode", ["plain", "asan", "race"])
@pytest.mark.parametrize(("dtype", "D"), [(mx.float32, 33), (mx.float16, 33), (mx.bfloat16, 40)])
@pytest.mark.parametrize("is_int8", [False, True], ids=["", "int8"])
def test_paged_cache_write(mode, dtype, D, is_int8):
    tokens, pages = random(2, 3, H, D, dtype=dtype), random(P, H, PAGE, D, dtype=dtype)
    if is_int8:
        tokens[0, 0, 1, 3] = mx.inf
        pages = mx.zeros((P, H, PAGE, D + 7), mx.int8)
    slots = mx.array([[0, -1, 71], [72, 9, 40]], mx.int32)

    def write(stream):
        inside = tokens.swapaxes(1, 2)  # B×H×L×D
        return (kernels.paged_cache_write(pages, inside, slots, stream=stream),)

    [actual], [expected] = gpu_results(write, mode), write(mx.cpu)
    assert mx.array_equal(actual, expected)
