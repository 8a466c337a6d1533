// paged_attention: attention to keys and values that lie in pages, without gathering them first.
//
// A page holds `page_size` tokens of all heads. A sequence's tokens are in the pages that its row
// of the block table names, in this order: key j of sequence b is
//
//     key_pages[block_table[b, j / page_size], h, j % page_size]
//
// and sequence b has context_lens[b] of them. What is computed is flash_attention.h's, tile by tile
// of 64 keys. Tiles are cut by position, never by page: one may lie in several pages, or be a part
// of one. So the result has the bits that flash_attention gives on the same keys in one buffer,
// whatever the page size, and wherever the pages are.
//
// The numbers in block_table, context_lens and cu_seqlens_q may not be known before the graph is
// evaluated, when it is too late to raise. Nothing outside of the arrays is read, whatever they
// are:
//   - context_lens are clamped to 0 … max_pages · page_size;
//   - a sequence that has a token in a page that is not there (a table entry below 0, or ≥ P)
//     gives NaN in all its rows. Entries beyond its last page are not looked at: −1 fills them.
//   - sequence s of the ragged form has tokens from max(cu_seqlens_q[0 … s]) on, up to
//     cu_seqlens_q[s + 1], clamped to 0 … T. A token of no sequence gives zero.
#pragma once

#include <optional>
#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Attention to keys and values in pages, with L queries for each of B sequences.
///
/// query: B×H_q×L×D, float32, float16 or bfloat16; D from 1 to 256.
/// key_pages, value_pages: P×H×page_size×D in the dtype of query; H divides H_q. Not copied if they
///   are row-contiguous.
/// block_table: B×max_pages int32. context_lens: B int32, the new tokens included.
/// scale: multiplies the scores; 1/√D if there is none.
/// causal: query i of sequence b sees keys j ≤ i + context_lens[b] − L only; if false, all of them.
///
/// Returns B×H_q×L×D in the dtype of query, laid out as B×L×H_q×D, which the next projection reads.
/// A row that may see no key is zero; the rows of a sequence with a key in a page that is not there
/// are NaN. Throws std::invalid_argument for anything else.
mx::array paged_attention(const mx::array& query, const mx::array& key_pages,
                          const mx::array& value_pages, const mx::array& block_table,
                          const mx::array& context_lens, std::optional<float> scale, bool causal,
                          mx::StreamOrDevice s = {});

/// paged_attention, causal, for sequences with different numbers of queries, one after the other.
///
/// query: T×H_q×D, of any strides.
/// cu_seqlens_q: B+1 int32, ascending from 0 to T. Sequence s has the tokens cu_seqlens_q[s] to
///   cu_seqlens_q[s + 1] − 1, and these are the last of its context_lens[s]: query i of them sees
///   keys j ≤ i + context_lens[s] − (cu_seqlens_q[s + 1] − cu_seqlens_q[s]).
/// The other arguments: as in paged_attention.
///
/// Returns T×H_q×D in the dtype of query, row-contiguous.
/// Throws std::invalid_argument for anything else.
mx::array paged_attention_varlen(const mx::array& query, const mx::array& key_pages,
                                 const mx::array& value_pages, const mx::array& cu_seqlens_q,
                                 const mx::array& context_lens, const mx::array& block_table,
                                 std::optional<float> scale, mx::StreamOrDevice s = {});

/// The graph node of both. Inputs, checked, of any strides: query B×H_q×L×D or T×H_q×D; key_pages
/// and value_pages P×H×page_size×D, block_table B×max_pages, context_lens B; and, if ragged,
/// cu_seqlens_q B+1. All but the query are row-contiguous as a rule, and copied if they are not.
class PagedAttention : public mx::UnaryPrimitive, public Capturable {
   public:
    PagedAttention(mx::Stream stream, float scale, bool causal, bool ragged)
        : mx::UnaryPrimitive(stream), scale_(scale), causal_(causal), ragged_(ragged) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmPagedAttention"; }
    bool is_equivalent(const mx::Primitive& other) const override;
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    float scale_;
    bool causal_;
    bool ragged_;
};

}  // namespace tiny_llm_ext
