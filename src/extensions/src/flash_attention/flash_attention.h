// flash_attention: Attention without a materialized score matrix.
//
//     out = softmax(query · keyᵀ · scale + mask) · value
//
// For one query row, with scores s_j over its visible keys j,
//
//     out = Σ_j exp(s_j − m) · v_j / Σ_j exp(s_j − m),   m = max_j s_j
//
// Keys are processed in tiles of 64 with three running values: the largest score so far m, the sum
// l and the weighted values o. Both l and o are relative to m, so a tile with a larger maximum m'
// first rescales them by exp(m − m'):
//
//     m' = max(m, max_j s_j)
//     l' = l · exp(m − m') + Σ_j exp(s_j − m')
//     o' = o · exp(m − m') + Σ_j exp(s_j − m') · v_j          and in the end out = o / l
//
// An attention sink is a logit per query head that joins the softmax's denominator only: m and l
// begin with the sink and 1 instead of −∞ and 0.
//
// This is exact for any tiling ("online softmax": Milakov and Gimelshein, 2018; Dao et al.,
// "FlashAttention", 2022). Scores, sums and weights are float32; only the result is rounded to the
// dtype of the query.
//
// Batch invariance: tiles begin at multiples of 64 keys, every sum runs in index order, and a
// hidden key with finite values contributes nothing. A row's result therefore has the same bits for
// any number of rows, sequences and threads, any chunking of the prompt, and any number of keys
// after its last visible one.
#pragma once

#include <optional>
#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Grouped-query attention: query head h reads key/value head h / (H_q / H).
///
/// query: N..×H_q×L×D, float32, float16 or bfloat16: L queries per sequence, D from 1 to 512; N..
///   stands for any leading dimensions.
/// key, value: N..×H×S×D in the dtype of query: S keys per sequence; H divides H_q. Not copied if
///   the last dimension is contiguous, as in slices of a larger buffer.
/// scale: factor of the scores; 1/√D by default.
/// causal: restricts query i to keys j ≤ i + S − L.
/// mask: broadcastable to N..×H_q×L×S. Floating: added to the scores, and −inf hides a key even if
///   its score is NaN. bool: true for visible keys.
/// context_lens: B int32 for a query B×H_q×L×D. Sequence b uses the first context_lens[b] of its S
///   keys, and causal means j ≤ i + context_lens[b] − L. Values are clamped to 0 … S.
/// sinks: H_q float32, the attention sinks.
///
/// Returns N..×H_q×L×D in the dtype of query, in the layout N..×L×H_q×D that the output projection
/// reads: transposing and flattening the heads needs no copy. A row without visible keys is zero.
/// Throws std::invalid_argument for any other arguments.
mx::array flash_attention(const mx::array& query, const mx::array& key, const mx::array& value,
                          std::optional<float> scale, bool causal,
                          const std::optional<mx::array>& mask,
                          const std::optional<mx::array>& context_lens,
                          const std::optional<mx::array>& sinks, mx::StreamOrDevice s = {});

/// Graph node of flash_attention. Validated inputs: query B×H_q×L×D, key and value B×H×S×D, any
/// strides; then, if given, mask B×H_q×L×S, context_lens B, sinks H_q.
class FlashAttention : public mx::UnaryPrimitive, public Capturable {
   public:
    FlashAttention(mx::Stream stream, float scale, bool causal, bool has_mask,
                   bool has_context_lens, bool has_sinks)
        : mx::UnaryPrimitive(stream),
          scale_(scale),
          causal_(causal),
          has_mask_(has_mask),
          has_context_lens_(has_context_lens),
          has_sinks_(has_sinks) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmFlashAttention"; }
    bool is_equivalent(const mx::Primitive& other) const override;
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    float scale_;
    bool causal_;
    bool has_mask_;
    bool has_context_lens_;
    bool has_sinks_;
};

}  // namespace tiny_llm_ext
