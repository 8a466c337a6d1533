"""Launches of the flash_attention kernels for tests."""

from typing import Any

import mlx.core as mx
import numpy as np

from tiny_llm import kernels

from .support import DTYPE_NAMES, as_array, as_bound, empty, run

VARIANTS = ["readable", "tile", "decode"]
MASK_KINDS = {None: 0, mx.bool_: 1, mx.float32: 2, mx.float16: 3, mx.bfloat16: 4}
FORWARD = ("forward", 1)


def broadcast_strides(shape: tuple[int, ...], to: tuple[int, ...]) -> list[int]:
    """Strides of a row-major array of `shape` broadcast to `to`."""
    shape = (1,) * (len(to) - len(shape)) + tuple(shape)
    steps = np.cumprod((1, *shape[:0:-1]))[::-1]
    return [0 if size == 1 else int(step) for size, step in zip(shape, steps, strict=True)]


def row_strides(x: mx.array) -> list[int]:
    """Strides of sequence, head and token in a B×H×C×D array."""
    _, H, C, D = x.shape
    return [H * C * D, C * D, D]


def params_of(
    query: mx.array,
    key: mx.array,
    mask: mx.array | str | None = None,
    context_lens: mx.array | None = None,
    S: int | None = None,
    aligned: bool = True,
    has_sinks: bool = False,
) -> Any:
    """Kernel params of contiguous arrays, as set by the operation's encoder."""
    (B, H_q, L, D), (H, C) = query.shape, key.shape[1:3]
    S = C if S is None else S
    array = None if isinstance(mask, str) else mask
    return kernels.extension().metal.FlashAttentionParams(
        B=B,
        H_q=H_q,
        H=H,
        L=L,
        S=S,
        D=D,
        scale=D**-0.5,
        causal=isinstance(mask, str),
        mask_kind=MASK_KINDS[None if array is None else array.dtype],
        has_context_lens=context_lens is not None,
        aligned=aligned and D % 4 == 0,
        has_sinks=has_sinks,
        query_strides=row_strides(query),
        key_strides=row_strides(key),
        value_strides=row_strides(key),
        mask_strides=[0] * 4 if array is None else broadcast_strides(array.shape, (B, H_q, L, S)),
    )


def attend(
    variant: str,
    query: mx.array,
    key: mx.array,
    value: mx.array,
    mask: mx.array | str | None = None,
    context_lens: mx.array | None = None,
    S: int | None = None,
    aligned: bool = True,
    mode: str = "plain",
    order: tuple[str, int] = FORWARD,
    sinks: mx.array | None = None,
) -> mx.array:
    """softmax(query · keyᵀ / √D + mask) · value with the given kernel.

    S: number of valid keys; the key and value buffers may be longer.
    """
    metal = kernels.extension().metal
    params = params_of(query, key, mask, context_lens, S, aligned, sinks is not None)
    dtype = DTYPE_NAMES[query.dtype]
    B, H_q, L, D = query.shape
    array = None if mask is None or isinstance(mask, str) else as_bound(mask).view(np.uint8)
    inputs = [
        *(as_bound(x) for x in (query, key, value)),
        np.zeros(1, np.uint8) if array is None else array.reshape(-1),
        np.zeros(1, np.int32) if context_lens is None else np.array(context_lens),
        np.zeros(1, np.float32) if sinks is None else np.array(sinks),
    ]
    launch = getattr(metal, f"flash_attention_{variant}_launch")(params, dtype)
    source = f"flash_attention/flash_attention_{variant}.metal"
    out = empty((B, L, H_q, D), dtype)
    if variant != "decode":
        run(source, launch, [*inputs, out], mode, order)
        return as_array(out).swapaxes(1, 2)
    splits = params.splits
    partial = np.full((B * H_q * L, splits, D), np.nan, np.float32)
    statistics = np.full((B * H_q * L, splits, 2), np.nan, np.float32)
    run(source, launch, [*inputs, out, partial, statistics], mode, order, outputs=3)
    if splits > 1:
        merge = metal.flash_attention_merge_launch(params, dtype)
        run(source, merge, [partial, statistics, out], mode, order)
    return as_array(out).swapaxes(1, 2)
