// add_bias: Adds the bias of a linear layer, such as Qwen2's QKV projections.
//
//     out[n, i] = x[n, i] + bias[i]
//
// The bias is added to the matmul's rounded output, as in tiny_llm.basics.linear.
#pragma once

#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// x + bias, broadcast over rows.
///
/// x: N..×O, float32, float16 or bfloat16; N.. stands for any leading dimensions.
/// bias: O, dtype of x.
/// Returns N..×O in that dtype. Throws std::invalid_argument for anything else.
mx::array add_bias(const mx::array& x, const mx::array& bias, mx::StreamOrDevice s = {});

/// Graph node of add_bias. Inputs: x, bias.
class AddBias : public mx::UnaryPrimitive, public Capturable {
   public:
    explicit AddBias(mx::Stream stream) : mx::UnaryPrimitive(stream) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmAddBias"; }
    bool is_equivalent(const mx::Primitive& other) const override { return true; }
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        return {inputs[0].shape()};
    }
};

}  // namespace tiny_llm_ext
