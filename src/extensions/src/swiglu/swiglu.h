// swiglu: Gated activation of the MLP.
//
//     out[n, i] = silu(gate[n, i]) · up[n, i],   silu(x) = x · sigmoid(x)
//
// Rounded to the arrays' dtype after each step, as in tiny_llm.basics.silu(gate) * up, so that a
// model's output is the same with and without this operation.
#pragma once

#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// silu(gate) · up, elementwise.
///
/// gate, up: N..×I, same shape and dtype: float32, float16 or bfloat16.
/// Returns N..×I in the dtype of gate. Throws std::invalid_argument for any other arguments.
mx::array swiglu(const mx::array& gate, const mx::array& up, mx::StreamOrDevice s = {});

/// Graph node of swiglu. Inputs: gate, up.
class Swiglu : public mx::UnaryPrimitive, public Capturable {
   public:
    explicit Swiglu(mx::Stream stream) : mx::UnaryPrimitive(stream) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmSwiglu"; }
    bool is_equivalent(const mx::Primitive& other) const override { return true; }
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        return {inputs[0].shape()};
    }
};

}  // namespace tiny_llm_ext
