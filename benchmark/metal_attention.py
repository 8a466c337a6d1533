"""Attention jobs of metal_traffic: tiny-llm vs. MLX, with Qwen3's heads."""

import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tiny_llm import kernels

from .metal_jobs import Job, RatioLimits, Step, mlx_library, our_step

DECODE, TILE = "flash_attention_decode.metal", "flash_attention_tile.metal"

D = 128
HEADS = {"0.6b": (16, 8), "4b and 8b": (32, 8)}  # (query heads, KV heads) by model size
MLX_BLOCKS = 32  # key blocks of MLX's two-pass attention


@dataclass(frozen=True)
class Attention:
    """One KV head's bfloat16 attention: `group` query heads, L queries, S keys."""

    group: int
    L: int
    S: int

    def query(self) -> np.ndarray:
        """Queries, 1 × group × L × D."""
        return np.ones((1, self.group, self.L, D), ml_dtypes.bfloat16)

    def keys(self) -> np.ndarray:
        """Keys, 1×1×S×D (D: head size); the values have the same shape."""
        return np.ones((1, 1, self.S, D), ml_dtypes.bfloat16)

    def params(self) -> Any:
        """Kernel parameters, as set by the operation's encoder."""
        strides = [self.S * D, self.S * D, D]
        return kernels.extension().metal.FlashAttentionParams(
            B=1, H_q=self.group, H=1, L=self.L, S=self.S, D=D, scale=D**-0.5, causal=True,
            mask_kind=0, has_context_lens=False, aligned=True,
            query_strides=[self.group * self.L * D, self.L * D, D],
            key_strides=strides, value_strides=strides, mask_strides=[0] * 4,
        )  # fmt: skip


def attention_jobs() -> list[Job]:
    """Jobs: decoding after 512 and 4,096 tokens, and the end of a prefill.

    The prefill job has the last 128 tokens of a prompt of 512. MLX uses a two-pass kernel for the
    longer context.
    """
    jobs = []
    for model, (H_q, H) in HEADS.items():
        group = H_q // H
        job = Attention(group, 1, 512)
        jobs.append(_job(f"decode {model}", job, H, "sdpa_vector", dense_decode, _vector))
        job = Attention(group, 1, 4096)
        name = f"sdpa_vector_2pass_1_gqa{group}"
        jobs.append(_job(f"decode {model}", job, H, name, dense_decode, _two_passes))
        job = Attention(group, 128, 512)
        name = "attention_32_16_128"
        jobs.append(_job(f"prefill {model}", job, H, name, dense_tile, _steel))
    return jobs


def _job(
    name: str,
    job: Attention,
    H: int,
    mlx_kernel: str,
    ours: Callable[[Attention], list[Step]],
    mlx: Callable[[Attention], list[Step]],
) -> Job:
    return Job(
        name=f"flash_attention {name}",
        shape=f"H_q {H * job.group}, H {H}, L {job.L}, S {job.S}",
        slice="one key head",
        times=H,
        limits=RatioLimits(),
        kernel="flash_attention_decode" if job.L == 1 else "flash_attention_tile",
        mlx_kernel=mlx_kernel,
        ours=functools.partial(ours, job),
        mlx=functools.partial(mlx, job),
    )


def _inputs(job: Attention) -> list[np.ndarray]:
    """Query, key, value, and placeholders for the absent mask, `context_lens` and `sinks`."""
    absent = [np.zeros(1, dtype) for dtype in (np.uint8, np.int32, np.float32)]
    return [job.query(), job.keys(), job.keys(), *absent]


def _out(job: Attention) -> np.ndarray:
    return np.zeros((1, job.L, job.group, D), ml_dtypes.bfloat16)


def dense_decode(job: Attention) -> list[Step]:
    """Launches of tiny-llm's decode kernel and of the merge of its splits."""
    metal, params, source = kernels.extension().metal, job.params(), f"flash_attention/{DECODE}"
    partial = np.zeros((job.group, params.splits, D), np.float32)
    statistics = np.zeros((job.group, params.splits, 2), np.float32)
    launch = metal.flash_attention_decode_launch(params, "bfloat16")
    arrays = [*_inputs(job), _out(job), partial, statistics]
    merge = metal.flash_attention_merge_launch(params, "bfloat16")
    return [
        our_step(source, launch, arrays),
        our_step(source, merge, [partial, statistics, _out(job)]),
    ]


def dense_tile(job: Attention) -> list[Step]:
    """Launch of tiny-llm's prefill kernel."""
    launch = kernels.extension().metal.flash_attention_tile_launch(job.params(), "bfloat16")
    return [our_step(f"flash_attention/{TILE}", launch, [*_inputs(job), _out(job)])]


def _vector(job: Attention) -> list[Step]:
    constants = {"c20": 0, "c21": 0, "c22": 0, "c23": 0, "c24": 0, "c25": 0, "c26": 1}
    head = np.int64(job.S * D)
    arguments = [job.query(), job.keys(), job.keys(), _out(job), job.group, job.S]
    arguments += [head, np.int64(D), head, np.int64(D), np.float32(D**-0.5)]
    library = mlx_library("attention_vector", **constants)
    return [Step(library, "sdpa_vector", arguments, (job.group, 1, 1), (1024, 1, 1))]


def _two_passes(job: Attention) -> list[Step]:
    constants = {"c20": 0, "c21": 0, "c22": 0, "c23": 0, "c24": 0, "c25": 0}
    library = mlx_library("attention_vector", **constants, c26=MLX_BLOCKS)
    head, rows = np.int64(job.S * D), (job.group, MLX_BLOCKS)
    partial = np.zeros((*rows, D), ml_dtypes.bfloat16)
    sums, largest = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    arguments: dict[int, Any] = {0: job.query(), 1: job.keys(), 2: job.keys(), 3: partial}
    arguments |= {4: sums, 5: largest, 7: job.S, 8: head, 9: np.int64(D), 10: head}
    arguments |= {11: np.int64(D), 12: np.float32(D**-0.5)}
    first = f"sdpa_vector_2pass_1_gqa{job.group}"
    merge = [partial, sums, largest, _out(job), MLX_BLOCKS]
    return [
        Step(library, first, arguments, (1, 1, MLX_BLOCKS), (32, job.group, 1)),
        Step(library, "sdpa_vector_2pass_2", merge, (job.group, 1, 1), (1024, 1, 1)),
    ]


def _steel(job: Attention) -> list[Step]:
    constants = {"c200": 1, "c201": 1, "c300": 0, "c301": 1, "c302": 0, "c303": 0}
    queries, keys = job.L // 32, job.S // 16
    query_head, key_head = job.L * D, job.S * D
    kv_strides = [key_head, key_head, D]
    strides = [job.group * query_head, query_head, D, *kv_strides, *kv_strides]
    strides += [job.group * query_head, D]
    params = struct.pack("6if7i12q", 1, job.group, D, job.L, job.S, job.group, D**-0.5,
                         queries, keys, queries, keys, 0, 0, job.S - job.L,
                         *strides, job.group * D)  # fmt: skip
    arguments = {0: job.query(), 1: job.keys(), 2: job.keys(), 3: _out(job), 4: params}
    library = mlx_library("attention", **constants)
    groups = (queries, job.group, 1)
    return [Step(library, "attention_32_16_128", arguments, groups, (32, 4, 1))]
