// Which Metal kernel attends, and how it is started.
//
//   readable  the course's: a simdgroup a query row, 32 rows a threadgroup, tiles of 32 keys
//   tile      simdgroup matrices: 8 rows a simdgroup; for prompts
//   decode    few rows: the keys are split among threadgroups, so that a GPU has work from one
//             sequence; flash_attention_merge adds the splits up
//
// Their buffers: query, key, value, mask, context_lens, out, at the strides of the params; out is
// B×L×H_q×D. A mask or context_lens that there is not may be any memory. The decode kernel with
// more than one split writes partial results and statistics instead of out.
#pragma once

#include "common/metal_launch.h"
#include "src/flash_attention/flash_attention_params.h"

namespace tiny_llm_ext {

MetalLaunch flash_attention_readable_launch(const FlashAttentionParams& params, Format format);
MetalLaunch flash_attention_tile_launch(const FlashAttentionParams& params, Format format);

/// params.splits must be attention_splits(params.S).
MetalLaunch flash_attention_decode_launch(const FlashAttentionParams& params, Format format);

/// Buffers: partial B×H_q×L×splits×D float32, statistics B×H_q×L×splits×2 float32, out.
MetalLaunch flash_attention_merge_launch(const FlashAttentionParams& params, Format format);

/// How many parts the decode kernel cuts S keys into. The cuts depend on nothing else, so neither
/// do the bits of a result.
int attention_splits(int S);

/// Whether the decode kernel is for L queries. The kernels add up in different orders, so this
/// must not depend on the batch or on S.
bool attention_is_decode(int L);

}  // namespace tiny_llm_ext
