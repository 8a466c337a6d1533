// How the kernels of paged_attention_simple.metal are started: a simdgroup a query row.
#pragma once

#include "common/metal_launch.h"
#include "src/paged_attention/paged_attention_params.h"

namespace tiny_llm_ext {

/// Buffers: query at its strides, key_pages, value_pages, block_table, context_lens, cu_seqlens_q
/// (any memory if params.L is not 0), out T×H_q×D.
MetalLaunch paged_attention_simple_launch(const PagedAttentionParams& params, Format format);

}  // namespace tiny_llm_ext
