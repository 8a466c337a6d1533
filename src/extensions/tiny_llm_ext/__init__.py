"""The compiled operations of tiny-llm: functions on `mlx.core.array`, lazy as MLX's own.

The package `tiny_llm` reaches them through `tiny_llm.kernels` alone.
"""

# First: it loads libmlx and registers mx.array with nanobind, which the module below looks up.
import mlx.core as _mx

from . import emulated_gpu
from ._ext import (
    Recorder,
    add_bias,
    add_rms_norm,
    argmax,
    axpby,
    cache_write,
    flash_attention,
    grouped_quantized_matmul,
    instruction_set,
    instruction_sets,
    interleave,
    interleave_file,
    interleaved_rows,
    large_pages,
    matmul,
    metal,
    num_threads,
    paged_attention,
    paged_attention_varlen,
    paged_cache_write,
    qk_norm_rope,
    quantized_embedding,
    quantized_matmul,
    quantized_matmul_each,
    rms_norm,
    swiglu,
    throw_what_tasks_threw,
    topk_softmax,
    try_schedule,
    use_schedule,
    weighted_sum,
)

__all__ = [
    "Recorder",
    "add_bias",
    "add_rms_norm",
    "argmax",
    "axpby",
    "cache_write",
    "emulated_gpu",
    "flash_attention",
    "grouped_quantized_matmul",
    "instruction_set",
    "instruction_sets",
    "interleave",
    "interleave_file",
    "interleaved_rows",
    "large_pages",
    "matmul",
    "metal",
    "num_threads",
    "paged_attention",
    "paged_attention_varlen",
    "paged_cache_write",
    "qk_norm_rope",
    "quantized_embedding",
    "quantized_matmul",
    "quantized_matmul_each",
    "rms_norm",
    "swiglu",
    "throw_what_tasks_threw",
    "topk_softmax",
    "try_schedule",
    "use_schedule",
    "weighted_sum",
]


def _check_abi() -> None:
    """A module built against another MLX imports well and then refuses every array."""
    try:
        axpby(_mx.array(0.0), _mx.array(0.0), 1.0, 1.0)
    except TypeError as error:
        raise ImportError(
            "tiny_llm_ext was built for another version of MLX; `pdm run build-ext` builds it anew."
        ) from error


_check_abi()
