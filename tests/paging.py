"""Helpers for paged cache tests: page construction and invariant checks."""

from collections.abc import Sequence
from itertools import pairwise

import mlx.core as mx
import numpy as np

from tests.support import assert_same_bits, random
from tiny_llm import TinyKvPagedCache, TinyKvPagedPool, kernels


def sequences(
    lengths: Sequence[int], H: int = 2, D: int = 40, dtype: mx.Dtype = mx.float32
) -> list[tuple[mx.array, mx.array]]:
    """Random keys and values of each sequence, H×S×D."""
    return [(random(H, S, D, dtype=dtype), random(H, S, D, dtype=dtype)) for S in lengths]


def cut_into_pages(
    sequences: Sequence[tuple[mx.array, mx.array]], page_size: int, spare: int = 2, seed: int = 0
) -> tuple[mx.array, mx.array, list[list[int]]]:
    """Splits each sequence's keys and values, H×S×D, into shuffled pages.

    Unused slots and `spare` pages contain NaN, so reads of them are detected.

    Returns:
        (key pages, value pages, page ids of each sequence).
    """
    (H, _, D), dtype = sequences[0][0].shape, sequences[0][0].dtype
    counts = [-(-keys.shape[1] // page_size) for keys, _ in sequences]
    P = sum(counts) + spare
    order = np.random.default_rng(seed).permutation(P).tolist()
    pages = [np.full((P, H, page_size, D), np.nan, np.float32) for _ in range(2)]
    table = []
    for pair, count in zip(sequences, counts, strict=True):
        page_ids, order = order[:count], order[count:]
        table.append(page_ids)
        for array, dense in zip(pages, pair, strict=True):
            tokens = np.array(dense.astype(mx.float32))
            for number, page in enumerate(page_ids):
                part = tokens[:, number * page_size : (number + 1) * page_size]
                array[page, :, : part.shape[1]] = part
    return mx.array(pages[0]).astype(dtype), mx.array(pages[1]).astype(dtype), table


def padded(table: Sequence[Sequence[int]], extra: int = 0) -> mx.array:
    """Block table with rows padded to equal length by −1."""
    width = max(map(len, table), default=0) + extra
    return mx.array([[*row, *[-1] * (width - len(row))] for row in table], dtype=mx.int32)


def write_int8(tokens: mx.array, page_size: int, padding: int = 0, fill: int = 99) -> mx.array:
    """Quantizes S×H×D tokens to P×H×page_size×(D + 4) pages: int8, 4-byte scale, padding."""
    S, H, D = tokens.shape
    pages = mx.full((-(-S // page_size), H, page_size, D + 4 + padding), fill, dtype=mx.int8)
    return kernels.paged_cache_write(pages, tokens, mx.arange(S, dtype=mx.int32))


def int8_pages(
    lengths: Sequence[int], page_size: int, H: int = 2, D: int = 40, dtype: mx.Dtype = mx.float32
) -> tuple[mx.array, mx.array, list[list[int]]]:
    """Like `cut_into_pages`, 8-bit pages of random sequences with varied magnitudes."""
    ends = np.cumsum([0, *(-(-S // page_size) for S in lengths)]).tolist()
    pools = []
    for spread in (0.5, 2):  # large keys' scores would exceed what float32 resolves
        tokens = [random(S, H, D) * mx.exp(spread * random(S, H, 1)) for S in lengths]
        pools.append(mx.concatenate([write_int8(x.astype(dtype), page_size) for x in tokens]))
    return *pools, [list(range(*bounds)) for bounds in pairwise(ends)]


def free_pages_before_window(
    arrays: tuple[mx.array, mx.array],
    table: Sequence[Sequence[int]],
    query_lens: Sequence[int],
    lengths: Sequence[int],
    page_size: int,
    window: int,
) -> tuple[mx.array, mx.array, mx.array]:
    """Frees pages before each sequence's first window; returns (key pages, value pages, table).

    Freed float pages are filled with NaN, and their block table entries are invalid ids.
    """
    keys, values = (np.array(x.astype(mx.float32)) for x in arrays)
    rows = [list(row) for row in table]
    for row, L, S in zip(rows, query_lens, lengths, strict=True):
        for index in range(max(0, S - L + 1 - window) // page_size):
            if arrays[0].dtype != mx.int8:
                keys[row[index]] = values[row[index]] = np.nan
            row[index] = (-1, 999, -(2**31))[index % 3]
    dtype = arrays[0].dtype
    return mx.array(keys).astype(dtype), mx.array(values).astype(dtype), padded(rows, extra=1)


class ShadowedCache:
    """A paged cache with a dense copy of the tokens written to it."""

    def __init__(self, pool: TinyKvPagedPool, H: int = 2, D: int = 8, dtype=mx.float32):
        self.cache = TinyKvPagedCache(pool)
        self.H, self.D, self.dtype = H, D, dtype
        self.keys = mx.zeros((1, H, 0, D), dtype=dtype)
        self.values = mx.zeros((1, H, 0, D), dtype=dtype)

    def new_tokens(self, L: int) -> tuple[mx.array, mx.array]:
        shape = (1, self.H, L, self.D)
        return random(*shape, dtype=self.dtype), random(*shape, dtype=self.dtype)

    def append_dense(self, key: mx.array, value: mx.array) -> None:
        self.keys = mx.concatenate([self.keys, key], axis=2)
        self.values = mx.concatenate([self.values, value], axis=2)

    def append(self, L: int) -> None:
        key, value = self.new_tokens(L)
        slots = mx.array([self.cache.reserve(L)], dtype=mx.int32)
        self.cache.pool.write(slots, key, value)
        self.append_dense(key, value)

    def rewind(self, n: int) -> None:
        self.cache.rewind(n)
        length = self.keys.shape[2] - n
        self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]


def check_integrity(pool: TinyKvPagedPool, caches: Sequence[ShadowedCache]) -> None:
    """Asserts invariants of Week 3's paged cache that hold after every step."""
    owned = [page for shadowed in caches for page in shadowed.cache.page_ids]
    assert len(owned) == len(set(owned)), f"two caches own the same page: {sorted(owned)}"
    assert all(0 <= page < pool.num_pages for page in owned)
    assert pool.num_pages - pool.num_free_pages == len(owned), (
        "the pages in use must be those that the caches own"
    )
    for shadowed in caches:
        cache, written = shadowed.cache, shadowed.keys.shape[2]
        assert cache.offset == written, "offset must equal the number of tokens written"
        assert cache.num_pages == -(-written // pool.page_size), (
            "num_pages must be the fewest that hold the tokens"
        )
        pages = [pool.read_page(page) for page in cache.page_ids] if written else []
        for part, expected in enumerate((shadowed.keys, shadowed.values) if pages else ()):
            tokens = mx.concatenate([page[part] for page in pages], axis=2)[:, :, :written]
            what = ("keys", "values")[part]
            assert_same_bits(tokens, expected, f"{what} of the pages in order")
