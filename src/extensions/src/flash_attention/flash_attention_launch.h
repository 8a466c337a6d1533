// Launches of flash_attention*.metal.
//
//     readable  for learners, D ≤ 256: one simdgroup per query row, tiles of 32 keys
//     tile      for prompts: simdgroup matrices, 8 rows per simdgroup
//     decode    for few rows: keys are split over threadgroups, so that one sequence occupies the
//               GPU; flash_attention_merge reduces the splits
//
// Buffers: query, key, value, mask, context_lens, sinks, out. The params have the strides of the
// inputs; out is contiguous, B×L×H_q×D. In place of an absent mask, context_lens or sinks, any
// buffer may be bound. With more than one split, the decode kernel writes partial results and
// statistics instead of out.
#pragma once

#include <string>

#include "common/metal_launch.h"
#include "src/flash_attention/flash_attention_params.h"

namespace tiny_llm_ext {

MetalLaunch flash_attention_readable_launch(const FlashAttentionParams& params, Format format);
MetalLaunch flash_attention_tile_launch(const FlashAttentionParams& params, Format format);

/// params.splits must be attention_splits(params.S).
MetalLaunch flash_attention_decode_launch(const FlashAttentionParams& params, Format format);

/// Buffers: partial B×H_q×L×splits×D float32, statistics B×H_q×L×splits×2 float32, out.
MetalLaunch flash_attention_merge_launch(const FlashAttentionParams& params, Format format);

/// Suffix of the tile and decode kernels' names for head size D, rounded up to a supported size.
std::string attention_head_size(int D);

/// Query rows per threadgroup of the decode kernel: 2, 4 or 8; at most 4 for D above 256.
int attention_decode_rows(int64_t rows, int D);

/// Number of splits of S keys in the decode kernel. Depends only on S, so that a sequence's result
/// has the same bits in any batch.
int attention_splits(int S);

/// Whether L queries use the decode kernel. The kernels' summation orders differ, so this must not
/// depend on the batch or on S.
bool attention_is_decode(int L);

}  // namespace tiny_llm_ext
