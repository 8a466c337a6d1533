// flash_attention: out = softmax(query · keyᵀ · scale + mask) · value, without the matrix of
// scores.
//
// For one query row, with scores s_j over the keys j that it may see,
//
//     out = Σ_j exp(s_j − m) · v_j / Σ_j exp(s_j − m),   m = max_j s_j
//
// The keys come in tiles of 64, and three things are carried from tile to tile: the largest score
// so far m, the sum l and the weighted values o. A tile whose largest score m' is above m changes
// the unit in which l and o are measured, so both are multiplied by exp(m − m') first:
//
//     m' = max(m, max_j s_j)
//     l' = l · exp(m − m') + Σ_j exp(s_j − m')
//     o' = o · exp(m − m') + Σ_j exp(s_j − m') · v_j          and in the end out = o / l
//
// That is exact, whatever the tiles ("online softmax": Milakov and Gimelshein, 2018; Dao et al.,
// "FlashAttention", 2022). Scores, sums and weights are float32; only the result is rounded to the
// dtype of the query.
//
// Tiles begin at multiples of 64 keys, every sum runs in the order of its index, and a key that a
// row may not see adds nothing to it. So a row's result is the same to the last bit however many
// rows, sequences and threads there are, however a prompt was cut into chunks, and however many
// keys lie beyond the last that it sees.
#pragma once

#include <optional>
#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Attention of grouped heads: query head h reads key/value head h / (H_q / H).
///
/// query: N..×H_q×L×D, float32, float16 or bfloat16; D from 1 to 256.
/// key, value: N..×H×S×D in the dtype of query; H divides H_q. The last dimension should be
///   contiguous; the others may have any strides (a part of a larger buffer is not copied).
/// scale: multiplies the scores; 1/√D if there is none.
/// causal: query i sees keys j ≤ i + S − L only.
/// mask: broadcastable to N..×H_q×L×S; added to the scores if floating, or true where a key may be
///   seen if bool. A score to which −inf was added is hidden, whatever it was.
/// context_lens: B int32 for a query B×H_q×L×D. Sequence b has only the first context_lens[b] of
///   its S keys, and the causal rule counts from there: j ≤ i + context_lens[b] − L. Values are
///   clamped to 0 … S.
///
/// Returns N..×H_q×L×D in the dtype of query, laid out as N..×L×H_q×D, which the next projection
/// reads: swapping the dimensions back and flattening the heads copies nothing. A row that may see
/// no key is zero. Throws std::invalid_argument for anything else.
mx::array flash_attention(const mx::array& query, const mx::array& key, const mx::array& value,
                          std::optional<float> scale, bool causal,
                          const std::optional<mx::array>& mask,
                          const std::optional<mx::array>& context_lens, mx::StreamOrDevice s = {});

/// The graph node. Inputs, checked, any strides: query B×H_q×L×D, key, value B×H×S×D, then the mask
/// B×H_q×L×S and context_lens B, contiguous, if there are.
class FlashAttention : public mx::UnaryPrimitive, public Capturable {
   public:
    FlashAttention(mx::Stream stream, float scale, bool causal, bool has_mask,
                   bool has_context_lens)
        : mx::UnaryPrimitive(stream),
          scale_(scale),
          causal_(causal),
          has_mask_(has_mask),
          has_context_lens_(has_context_lens) {}

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
};

}  // namespace tiny_llm_ext
