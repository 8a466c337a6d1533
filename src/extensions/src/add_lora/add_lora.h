// add_lora: Low-rank updates of a linear layer, with one adapter per row.
//
//     out[m] = y[m] + (x[m] · Aᵀ) · B,  where A and B belong to row m's adapter
//
// The adapters' matrices are concatenated along the rank dimension: adapter k has rows
// rank_offsets[k] … rank_offsets[k + 1] − 1 of both, so ranks may differ and are not padded. Both
// matmuls are computed in float32; only their sum with y is rounded to the output dtype. Batch
// invariance: a row's bits depend only on the row and its adapter.
//
// Source: Chen et al., "Punica: Multi-Tenant LoRA Serving" (2023), arXiv 2310.18547.
#pragma once

#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// y + (x · lora_aᵀ) · lora_b, restricted to the ranks of each row's adapter.
///
/// y: N..×O, float32, float16 or bfloat16; N.. stands for any leading dimensions.
/// x: N..×I, lora_a: R×I, lora_b: R×O, dtype of y; R is the sum of all adapters' ranks.
/// rank_offsets: int32, ascending from 0 to R; adapter i has ranks rank_offsets[i] …
///   rank_offsets[i + 1] − 1.
/// adapter_ids: one per row of y, int32; a row whose id is not an adapter's index is unchanged.
/// Returns N..×O in the dtype of y. Throws std::invalid_argument for anything else.
mx::array add_lora(const mx::array& y, const mx::array& x, const mx::array& lora_a,
                   const mx::array& lora_b, const mx::array& rank_offsets,
                   const mx::array& adapter_ids, mx::StreamOrDevice s = {});

/// Graph node of add_lora. Inputs: y, x, lora_a, lora_b, rank_offsets, adapter_ids.
class AddLora : public mx::UnaryPrimitive, public Capturable {
   public:
    explicit AddLora(mx::Stream stream) : mx::UnaryPrimitive(stream) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmAddLora"; }
    bool is_equivalent(const mx::Primitive&) const override { return true; }
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        return {inputs[0].shape()};
    }
};

}  // namespace tiny_llm_ext
