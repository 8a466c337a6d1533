// Launches of paged_attention*.metal, with the variants of flash_attention_launch.h. Decode and
// tile give the same bits as flash_attention's; readable does not, because it rescales the sums
// after every key instead of every tile.
//
//   readable  for reading: one simdgroup per query row; no int8 pages or windows
//   decode    sequences with few queries: keys are split over threadgroups, and
//             paged_attention_merge reduces the results if there is more than one split
//   tile      sequences with more queries: simdgroup matrices
//
// In the varlen form (params.L = 0), lengths are known only on the device and a call may mix both
// kinds of sequences, so decode and tile both run, and each skips the other's sequences. Decode
// also zeroes the rows of tokens in no sequence.
//
// Buffers of all but the merge: query (strides in the params), key_pages, value_pages, block_table,
// context_lens, cu_seqlens_q (if params.L is not 0, any buffer, as it is not read), sinks (if there
// are none, any buffer), out T×H_q×D; for decode, also partial and statistics (if there is one
// split, any buffers).
#pragma once

#include "common/metal_launch.h"
#include "src/paged_attention/paged_attention_params.h"

namespace tiny_llm_ext {

MetalLaunch paged_attention_readable_launch(const PagedAttentionParams& params, Format format);
MetalLaunch paged_attention_decode_launch(const PagedAttentionParams& params, Format format);
MetalLaunch paged_attention_tile_launch(const PagedAttentionParams& params, Format format);

/// Buffers: partial rows×splits×D and statistics rows×splits×2, float32, with
/// paged_attention_partial_rows rows; cu_seqlens_q; out.
MetalLaunch paged_attention_merge_launch(const PagedAttentionParams& params, Format format);

/// Whether the call may have sequences for the decode kernel (has_decode) or for the tile kernel
/// (has_tile). The choice of kernel for a sequence depends only on its number of queries.
bool paged_attention_has_decode(const PagedAttentionParams& params);
bool paged_attention_has_tile(const PagedAttentionParams& params);

/// Upper bound of the number of rows for which decode stores partial results.
int64_t paged_attention_partial_rows(const PagedAttentionParams& params);

/// Value of params.splits: number of splits of the longest context that fits the block table,
/// because the host does not know context_lens.
int paged_attention_splits(int max_pages, int page_size);

}  // namespace tiny_llm_ext
