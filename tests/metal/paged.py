"""Launches of the paged_attention kernels for tests."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from tiny_llm import kernels

from .attention import FORWARD, row_strides
from .support import DTYPE_NAMES, as_array, as_bound, empty, run

FOLDER = "paged_attention/paged_attention"


def params_of(
    query: mx.array,
    keys: mx.array,
    block_table: mx.array,
    causal: bool = True,
    aligned: bool = True,
    window: int = 0,
    has_sinks: bool = False,
) -> Any:
    """Kernel params of contiguous arrays, as set by the operation's encoder.

    query: B×H_q×L×D, or T×H_q×D in the ragged form.
    """
    (P, H, page_size, width), (B, max_pages) = keys.shape, block_table.shape
    D = query.shape[-1]
    H_q, ragged = query.shape[1], query.ndim == 3
    return kernels.extension().metal.PagedAttentionParams(
        H_q=H_q, H=H, D=D, B=B, max_pages=max_pages, P=P, page_size=page_size,
        row_width=width, T=query.size // (H_q * D), L=0 if ragged else query.shape[2],
        scale=D**-0.5, causal=causal, aligned=aligned and D % 4 == 0, int8=keys.dtype == mx.int8,
        window=window, has_sinks=has_sinks,
        query_strides=[H_q * D, D, H_q * D] if ragged else row_strides(query),
    )  # fmt: skip


def paged_attend(
    variant: str,
    query: mx.array,
    keys: mx.array,
    values: mx.array,
    block_table: mx.array,
    context_lens: mx.array | Sequence[int],
    cu_seqlens_q: mx.array | Sequence[int] | None = None,
    causal: bool = True,
    aligned: bool = True,
    mode: str = "plain",
    order: tuple[str, int] = FORWARD,
    window: int = 0,
    sinks: mx.array | None = None,
) -> mx.array:
    """Attention: B×H_q×L×D, or T×H_q×D with cu_seqlens_q; pages may be 8-bit.

    variant: "readable" for the course's kernel, "fast" for the kernels launched by the encoder.
    """
    metal, dtype = kernels.extension().metal, DTYPE_NAMES[query.dtype]
    params = params_of(query, keys, block_table, causal, aligned, window, sinks is not None)
    cu_seqlens_q = (
        [0] if cu_seqlens_q is None else cu_seqlens_q
    )  # placeholder that the kernel does not read
    lengths = (np.array(x, np.int32) for x in (context_lens, cu_seqlens_q))
    inputs = [*(as_bound(x) for x in (query, keys, values, block_table)), *lengths]
    inputs.append(np.zeros(1, np.float32) if sinks is None else np.array(sinks))
    H_q, D = query.shape[1], query.shape[-1]
    out = empty((query.size // (H_q * D), H_q, D), dtype)

    def launch_kernel(name: str, source: str, arrays: list[np.ndarray], outputs: int = 1) -> None:
        launch = getattr(metal, f"paged_attention_{name}_launch")(params, dtype)
        run(f"{FOLDER}_{source}.metal", launch, arrays, mode, order, outputs)

    if variant == "readable":
        launch_kernel("readable", "readable", [*inputs, out])
    elif params.has_decode:
        rows, splits = params.partial_rows, params.splits
        partial = np.full((rows, splits, D), np.nan, np.float32)
        statistics = np.full((rows, splits, 2), np.nan, np.float32)
        launch_kernel("decode", "decode", [*inputs, out, partial, statistics], outputs=3)
        if splits > 1 and rows > 0:
            launch_kernel("merge", "decode", [partial, statistics, inputs[5], out])
    if variant == "fast" and params.has_tile:
        launch_kernel("tile", "tile", [*inputs, out])
    if query.ndim == 3:
        return as_array(out)
    B, _, L, _ = query.shape
    return as_array(out.reshape(B, L, H_q, D)).swapaxes(1, 2)
