"""Paged attention jobs of metal_traffic, compared with dense kernels.

MLX has no paged attention kernel, so the peers are tiny-llm's dense kernels. They read the same
keys and values, so the difference is the cost of the block table.
"""

import functools
from typing import Any

import ml_dtypes
import numpy as np

from tiny_llm import kernels

from .metal_attention import HEADS, Attention, D, dense_decode, dense_tile
from .metal_jobs import Job, RatioLimits, Step, our_step

SOURCE_PREFIX = "paged_attention/paged_attention"
# Overhead allowed for the block table.
PAGED_LIMITS = RatioLimits(device_bytes=1.05, instructions=1.15)
PAGE_SIZES = (128, 32, 16)  # tokens per page: defaults of Week 3 and the engine, and a smaller size


def paged_jobs() -> list[Job]:
    """Jobs: decoding after 4,096 tokens, and the last 128 of 512 prompt tokens."""
    jobs = []
    for model, (H_q, H) in HEADS.items():
        for page_size in PAGE_SIZES:
            job = Attention(H_q // H, 1, 4096)
            jobs.append(_job(f"decode {model}", job, H, page_size, "decode"))
            job = Attention(H_q // H, 128, 512)
            jobs.append(_job(f"prefill {model}", job, H, page_size, "tile"))
    return jobs


def _job(name: str, job: Attention, H: int, page_size: int, variant: str) -> Job:
    return Job(
        name=f"paged_attention {name}",
        shape=f"H_q {H * job.group}, H {H}, L {job.L}, S {job.S}, pages of {page_size}",
        slice="one key head",
        times=H,
        limits=PAGED_LIMITS,
        kernel=f"paged_attention_{variant}",
        mlx_kernel=f"flash_attention_{variant}",
        ours=functools.partial(_steps, job, page_size, variant),
        mlx=functools.partial(dense_decode if variant == "decode" else dense_tile, job),
        peer="dense",
    )


def _params(job: Attention, page_size: int) -> Any:
    """Kernel parameters, as set by the operation's encoder."""
    P, strides = job.S // page_size, [job.group * job.L * D, job.L * D, D]
    return kernels.extension().metal.PagedAttentionParams(
        H_q=job.group, H=1, D=D, B=1, max_pages=P, P=P, page_size=page_size, row_width=D,
        T=job.L, L=job.L, scale=D**-0.5, causal=True, aligned=True, query_strides=strides,
    )  # fmt: skip


def _steps(job: Attention, page_size: int, variant: str) -> list[Step]:
    metal, params, P = kernels.extension().metal, _params(job, page_size), job.S // page_size
    table = np.arange(P, dtype=np.int32)[::-1].reshape(1, P).copy()
    lengths = [np.array([job.S], np.int32), np.zeros(1, np.int32)]
    no_sinks = np.zeros(1, np.float32)
    pages = job.keys().reshape(P, 1, page_size, D)
    out = np.zeros((job.L, job.group, D), ml_dtypes.bfloat16)
    arrays = [job.query(), pages, pages, table, *lengths, no_sinks, out]
    if variant == "tile":
        launch = metal.paged_attention_tile_launch(params, "bfloat16")
        return [our_step(f"{SOURCE_PREFIX}_tile.metal", launch, arrays)]
    partial = np.zeros((params.partial_rows, params.splits, D), np.float32)
    statistics = np.zeros((params.partial_rows, params.splits, 2), np.float32)
    launch = metal.paged_attention_decode_launch(params, "bfloat16")
    merge = metal.paged_attention_merge_launch(params, "bfloat16")
    source = f"{SOURCE_PREFIX}_decode.metal"
    return [
        our_step(source, launch, [*arrays, partial, statistics]),
        our_step(source, merge, [partial, statistics, lengths[1], out]),
    ]
