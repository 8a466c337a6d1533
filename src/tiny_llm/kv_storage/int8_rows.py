"""8-bit KV cache rows: integers that share a float32 scale, in plain MLX.

A row is one head's key or value for one token. It is quantized once, when written, so its bits do
not depend on the prompt's chunking, the batch or the prefix cache. The extension writes and reads
rows in place (`src/extensions/common/int8_rows.h`); this module is its reference.
"""

from typing import Any, Literal

import mlx.core as mx

KvCacheDtype = Literal["auto", "int8"]  # "auto" stands for the activations' dtype
KV_CACHE_DTYPES: tuple[KvCacheDtype, ...] = ("auto", "int8")

SCALE_BYTES = 4
SMALLEST_NORMAL = 2.0**-126  # of float32


def kv_row_width(head_dim: int, min_head_dim: int, kv_cache_dtype: KvCacheDtype) -> int:
    """Elements of a row, including the padding of an 8-bit row.

    If `head_dim` is n times the model's smallest head size, a row is as long as n rows of that
    size, so that layers of both sizes can share pages.
    """
    num_scales = 1 if head_dim % min_head_dim else head_dim // min_head_dim
    return head_dim + (SCALE_BYTES * num_scales if kv_cache_dtype == "int8" else 0)


def row_scales(x: mx.array) -> mx.array:
    """Returns the scale of each row of D floats: ...×D float32 -> ...×1 float32.

    The scale is max |x| / 127, which maps the largest element to ±127. It is NaN if an element is
    infinite or NaN, and 0 instead of a subnormal, whose inverse may overflow.
    """
    # [task 6.3.1 scale]
    largest = mx.abs(x).max(axis=-1, keepdims=True)
    is_finite = largest < float("inf")  # False for NaN
    scale = mx.where(is_finite, largest / 127, float("nan"))
    return mx.where(scale < SMALLEST_NORMAL, 0.0, scale)
    # [/task 6.3.1 scale]


def quantize_rows(x: mx.array) -> mx.array:
    """Quantizes rows of D floats of any dtype: ...×D -> ...×(D + 4) int8.

    The integers are x · (1 / scale), rounded to nearest, ties to even; all 0 if the scale is 0 or
    NaN. The scale's four bytes follow the integers.
    """
    # [task 6.3.2 quantize]
    x = x.astype(mx.float32)
    scale = row_scales(x)
    has_inverse = scale > 0  # False for NaN
    integers = mx.where(has_inverse, mx.round(x * (1 / scale)), 0.0).astype(mx.int8)
    return mx.concatenate([integers, mx.view(scale, mx.int8)], axis=-1)
    # [/task 6.3.2 quantize]


def dequantize_rows(rows: mx.array) -> mx.array:
    """Dequantizes rows: ...×(D + 4) int8 -> ...×D float32."""
    # [task 6.3.2 dequantize]
    scale = mx.view(mx.contiguous(rows[..., -SCALE_BYTES:]), mx.float32)
    return rows[..., :-SCALE_BYTES].astype(mx.float32) * scale
    # [/task 6.3.2 dequantize]


def write_int8_rows(pages: mx.array, tokens: mx.array, slots: mx.array) -> mx.array:
    """Writes tokens to a copy of 8-bit pages: reference for `paged_cache_write`.

    Args:
        pages: P×H×page_size×(D + 4) int8: P pages, H heads of size D plus 4 scale bytes. Copied.
        tokens: B×H×L×D, of any float dtype: L tokens in each of B sequences.
        slots: B×L int32, page_id · page_size + position in the page; −1 skips a token.
    """
    page_size = pages.shape[2]
    # [task 6.3.3 write]
    rows = quantize_rows(tokens).swapaxes(1, 2).flatten(0, 1)  # (B·L)×H×(D + 4)
    numbers: Any = slots.flatten().tolist()
    written = mx.array([t for t, slot in enumerate(numbers) if slot >= 0], mx.int32)
    rows, slots = rows[written], slots.flatten()[written]
    pages = mx.array(pages)
    pages[slots // page_size, :, slots % page_size] = rows
    return pages
    # [/task 6.3.3 write]


def read_int8_pages(pages: mx.array, block_table: mx.array) -> tuple[mx.array, mx.array]:
    """Dequantizes only the pages in a block table.

    Args:
        pages: P×H×page_size×(D + 4) int8, as in `write_int8_rows`.
        block_table: B×max_pages int32, each sequence's pages; −1 yields an arbitrary page.

    Returns:
        (float pages B·max_pages×H×page_size×D, one per table entry; new block table, in which
        sequence b's entry j is b · max_pages + j).
    """
    # [task 6.3.4 read]
    page_ids = mx.maximum(block_table.flatten(), 0)
    table = mx.arange(page_ids.size, dtype=mx.int32).reshape(block_table.shape)
    return dequantize_rows(pages[page_ids]), table
    # [/task 6.3.4 read]
