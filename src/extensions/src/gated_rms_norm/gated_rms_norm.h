// gated_rms_norm: Normalization and gate of a Gated DeltaNet's output.
//
//     y[n, d] = o[n, d] / √(mean_d o[n, d]² + eps) · weight[d] · silu(z[n, d])
//
// Computed in float32 and rounded once.
#pragma once

#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// RMSNorm of each value head, times silu(z).
///
/// o: N..×D_v float32; N.. stands for any leading dimensions, D_v is the size of a value head.
/// z: N..×D_v, float32, float16 or bfloat16.
/// weight: D_v, float32 or the dtype of z. eps: added to the mean of squares.
/// Returns N..×D_v in the dtype of z. Throws std::invalid_argument for any other arguments.
mx::array gated_rms_norm(const mx::array& o, const mx::array& z, const mx::array& weight, float eps,
                         mx::StreamOrDevice s = {});

/// Graph node of gated_rms_norm. Inputs: o, z, weight.
class GatedRmsNorm : public mx::UnaryPrimitive, public Capturable {
   public:
    GatedRmsNorm(mx::Stream stream, float eps) : mx::UnaryPrimitive(stream), eps_(eps) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmGatedRmsNorm"; }
    bool is_equivalent(const mx::Primitive& other) const override {
        return eps_ == static_cast<const GatedRmsNorm&>(other).eps_;
    }
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        return {inputs[1].shape()};
    }

   private:
    float eps_;
};

}  // namespace tiny_llm_ext
