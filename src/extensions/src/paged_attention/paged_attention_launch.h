// Which Metal kernels attend to pages, and how they are started. The variants are those of
// flash_attention_launch.h, and a sequence's rows have the same bits:
//
//   readable  the course's: a simdgroup a query row
//   decode    for sequences with few queries: the keys are split among threadgroups, whose results
//             paged_attention_merge adds up if there is more than one split
//   tile      simdgroup matrices: for those with more
//
// In the ragged form (params.L = 0) lengths are known on the device alone, and a call may have
// sequences of both kinds: decode and tile both run, and each leaves the other's sequences alone.
// Decode also clears the rows of tokens that no sequence has.
//
// Buffers of all but the merge: query at its strides, key_pages, value_pages, block_table,
// context_lens, cu_seqlens_q (any memory if params.L is not 0), out T×H_q×D; and for decode
// partial and statistics, which are any memory if there is one split.
#pragma once

#include "common/metal_launch.h"
#include "src/paged_attention/paged_attention_params.h"

namespace tiny_llm_ext {

MetalLaunch paged_attention_readable_launch(const PagedAttentionParams& params, Format format);
MetalLaunch paged_attention_decode_launch(const PagedAttentionParams& params, Format format);
MetalLaunch paged_attention_tile_launch(const PagedAttentionParams& params, Format format);

/// Buffers: partial rows×splits×D and statistics rows×splits×2, float32, for
/// paged_attention_partial_rows; cu_seqlens_q; out.
MetalLaunch paged_attention_merge_launch(const PagedAttentionParams& params, Format format);

/// Whether there may be sequences for decode, and for tile. Which kernel serves a sequence depends
/// on how many queries it has, and on nothing else in the call.
bool paged_attention_has_decode(const PagedAttentionParams& params);
bool paged_attention_has_tile(const PagedAttentionParams& params);

/// How many rows of partial results decode may have.
int64_t paged_attention_partial_rows(const PagedAttentionParams& params);

/// params.splits: how many parts the keys that a block table has room for are cut into.
int paged_attention_splits(int max_pages, int page_size);

}  // namespace tiny_llm_ext
