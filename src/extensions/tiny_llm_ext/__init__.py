"""Compiled operations of tiny-llm: lazy functions on `mlx.core.array`.

The package `tiny_llm` calls them only through `tiny_llm.kernels`.
"""

# Must be first: loads libmlx and registers mx.array with nanobind for the module below.
import mlx.core as _mx

from . import emulated_gpu
from ._ext import (
    GraphCache,
    add_bias,
    add_lora,
    add_rms_norm,
    argmax,
    axpby,
    cache_write,
    causal_conv1d,
    flash_attention,
    gated_delta_rule,
    gated_rms_norm,
    grouped_quantized_matmul,
    huge_pages,
    instruction_set,
    instruction_sets,
    map_file,
    matmul,
    metal,
    multi_quantized_matmul,
    num_threads,
    paged_attention,
    paged_attention_varlen,
    paged_cache_write,
    populate_rows,
    prepack_rows,
    prepack_weight,
    prepack_weight_from_file,
    qk_norm_rope,
    quantized_embedding,
    quantized_matmul,
    read_gguf_blocks,
    release_rows,
    reserve_zeros,
    rethrow_task_error,
    rms_norm,
    scaled_sum,
    set_schedule,
    sigmoid_gate,
    simulate_schedule,
    swiglu,
    topk_softmax,
    weighted_sum,
)

__all__ = [
    "GraphCache",
    "add_bias",
    "add_lora",
    "add_rms_norm",
    "argmax",
    "axpby",
    "cache_write",
    "causal_conv1d",
    "emulated_gpu",
    "flash_attention",
    "gated_delta_rule",
    "gated_rms_norm",
    "grouped_quantized_matmul",
    "huge_pages",
    "instruction_set",
    "instruction_sets",
    "map_file",
    "matmul",
    "metal",
    "multi_quantized_matmul",
    "num_threads",
    "paged_attention",
    "paged_attention_varlen",
    "paged_cache_write",
    "populate_rows",
    "prepack_rows",
    "prepack_weight",
    "prepack_weight_from_file",
    "qk_norm_rope",
    "quantized_embedding",
    "quantized_matmul",
    "read_gguf_blocks",
    "release_rows",
    "reserve_zeros",
    "rethrow_task_error",
    "rms_norm",
    "scaled_sum",
    "set_schedule",
    "sigmoid_gate",
    "simulate_schedule",
    "swiglu",
    "topk_softmax",
    "weighted_sum",
]


def _check_abi() -> None:
    """Raises ImportError if the operations reject arrays of this MLX version."""
    try:
        axpby(_mx.array(0.0), _mx.array(0.0), 1.0, 1.0, stream=_mx.cpu)
    except TypeError as error:
        raise ImportError(
            "tiny_llm_ext was built for another version of MLX; run `pdm run build-ext` to rebuild."
        ) from error


_check_abi()
