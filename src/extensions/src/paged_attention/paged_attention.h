// paged_attention: Attention over a paged KV cache, without gathering pages.
//
// A page holds `page_size` tokens of all heads. A sequence's row of the block table lists its
// pages in order: key j of sequence b is
//
//     key_pages[block_table[b, j / page_size], h, j % page_size]
//
// and sequence b has context_lens[b] keys. The computation is that of flash_attention.h, in tiles
// of a fixed number of keys. Tiles begin at multiples of that number, independently of pages: a
// tile may span several pages or a fraction of a page. The result therefore has the bits of
// flash_attention on contiguous keys, for any page size and page placement.
//
// A sliding window of W hides all but the newest W of a query's keys: of the keys up to position i,
// those from i − W + 1 on are visible. Keys before the window of a sequence's first query are not
// read, and their block table entries are ignored, because their pages may have been freed. Tiles
// still begin at multiples of the tile size, so a row's bits do not depend on the other queries in
// the call.
//
// The values of block_table, context_lens and cu_seqlens_q are known only at evaluation, too late
// for an exception. Invalid values never cause an out-of-bounds read:
//   - a sequence with a context_len above max_pages · page_size, or with a token in an invalid page
//     (a table entry below 0 or ≥ P), has NaN in all its output rows. Entries after its last page
//     (padding, −1) and before the window of its first query are ignored. A context_len below 0
//     counts as 0.
//   - sequence s of the varlen form has the tokens from max(cu_seqlens_q[0 … s]) up to
//     cu_seqlens_q[s + 1], clamped to 0 … T. The output of a token in no sequence is zero.
#pragma once

#include <optional>
#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Attention over paged keys and values, with L queries for each of B sequences.
///
/// query: B×H_q×L×D for H_q heads of size D, 1 to 512; float32, float16 or bfloat16.
/// key_pages, value_pages: P×H×page_size×D in the dtype of query, or 8-bit rows
///   (common/int8_rows.h) P×H×page_size×(D + 4 or more) int8; P pages, and H heads, a divisor of
///   H_q. Not copied if they are row-contiguous. The scale of an 8-bit key multiplies its score,
///   that of a value its softmax weight.
/// block_table: B×max_pages int32. context_lens: B int32, including the new tokens.
/// scale: factor of the scores; 1/√D by default.
/// causal: restricts query i of sequence b to keys j ≤ i + context_lens[b] − L.
/// window: further restricts query i to keys j > i + context_lens[b] − L − window; at least 1, or 0
///   for no window. Requires `causal`.
/// sinks: H_q float32, the attention sinks, if any.
///
/// Returns B×H_q×L×D in the dtype of query, in the memory layout B×L×H_q×D, which the output
/// projection reads without a copy. A row without visible keys is zero; all rows of a sequence with
/// keys beyond the block table or in an invalid page are NaN. Throws std::invalid_argument for
/// any other arguments.
mx::array paged_attention(const mx::array& query, const mx::array& key_pages,
                          const mx::array& value_pages, const mx::array& block_table,
                          const mx::array& context_lens, std::optional<float> scale, bool causal,
                          int window, const std::optional<mx::array>& sinks,
                          mx::StreamOrDevice s = {});

/// Causal paged_attention for concatenated sequences with different numbers of queries.
///
/// query: T×H_q×D, any strides.
/// cu_seqlens_q: B+1 int32, ascending from 0 to T. Sequence s has the tokens cu_seqlens_q[s] to
///   cu_seqlens_q[s + 1] − 1, the last of its context_lens[s] tokens: its query i sees keys
///   j ≤ i + context_lens[s] − (cu_seqlens_q[s + 1] − cu_seqlens_q[s]), the last `window` of them
///   if there is a window.
/// Other arguments: as in paged_attention.
///
/// Returns T×H_q×D in the dtype of query, row-contiguous.
/// Throws std::invalid_argument for any other arguments.
mx::array paged_attention_varlen(const mx::array& query, const mx::array& key_pages,
                                 const mx::array& value_pages, const mx::array& cu_seqlens_q,
                                 const mx::array& context_lens, const mx::array& block_table,
                                 std::optional<float> scale, int window,
                                 const std::optional<mx::array>& sinks, mx::StreamOrDevice s = {});

/// Graph node of paged_attention and paged_attention_varlen. Validated inputs, any strides: query
/// B×H_q×L×D or T×H_q×D; key_pages and value_pages P×H×page_size×D, block_table B×max_pages,
/// context_lens B; for varlen, cu_seqlens_q B+1; and, if given, sinks H_q. Inputs other than the
/// query are copied unless row-contiguous.
class PagedAttention : public mx::UnaryPrimitive, public Capturable {
   public:
    PagedAttention(mx::Stream stream, float scale, bool causal, int window, bool ragged,
                   bool has_sinks)
        : mx::UnaryPrimitive(stream),
          scale_(scale),
          causal_(causal),
          window_(window),
          ragged_(ragged),
          has_sinks_(has_sinks) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmPagedAttention"; }
    bool is_equivalent(const mx::Primitive& other) const override;
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    float scale_;
    bool causal_;
    int window_;
    bool ragged_;
    bool has_sinks_;
};

}  // namespace tiny_llm_ext
