// rms_norm: RMSNorm over rows, with an optional fused residual addition.
//
//     out[n, i] = round(x[n, i] / √(mean_i(x[n, i]²) + eps)) · weight[i]
//
// The mean is computed in float32. round() rounds to the dtype of x, as in tiny_llm.layer_norm; out
// is rounded to it, too. A row's result is independent of the other rows.
//
// add_rms_norm first adds two arrays and also returns their sum: in a transformer, a norm follows
// each residual connection, and the next residual connection needs the sum.
#pragma once

#include <utility>
#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// x / √(mean(x²) + eps) · weight, over the last axis.
///
/// x: N..×D, float32, float16 or bfloat16. weight: D, dtype of x.
/// eps: avoids division by zero for a row of zeros.
/// Returns N..×D in the dtype of x. Throws std::invalid_argument for any other arguments.
mx::array rms_norm(const mx::array& x, const mx::array& weight, float eps,
                   mx::StreamOrDevice s = {});

/// x + y and its rms_norm: a residual connection and the following norm.
///
/// x, y: N..×D, same shape and dtype; weight and eps as in rms_norm.
/// Returns x + y, rounded to their dtype, and rms_norm of the rounded sum, both N..×D.
/// Throws std::invalid_argument for any other arguments.
std::pair<mx::array, mx::array> add_rms_norm(const mx::array& x, const mx::array& y,
                                             const mx::array& weight, float eps,
                                             mx::StreamOrDevice s = {});

/// Graph node of rms_norm and add_rms_norm. Inputs: x, weight; or x, y, weight with outputs sum and
/// norm.
class RmsNorm : public mx::Primitive, public Capturable {
   public:
    RmsNorm(mx::Stream stream, float eps) : mx::Primitive(stream), eps_(eps) {}

    void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
    void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;

    const char* name() const override { return "TinyLlmRmsNorm"; }
    bool is_equivalent(const mx::Primitive& other) const override;
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    float eps_;
};

}  // namespace tiny_llm_ext
