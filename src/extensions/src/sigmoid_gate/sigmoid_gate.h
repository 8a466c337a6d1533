// sigmoid_gate: Output gate of an attention layer.
//
//     out[n, i] = x[n, i] · σ(gate[n, i])     or σ(gate[n]), a gate per row
//
// Computed in float32 and rounded once.
#pragma once

#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// x · sigmoid(gate), elementwise or with a gate per row.
///
/// x: N..×D, float32, float16 or bfloat16. gate: N..×D or N..×1, dtype of x. Views with a single
///   row stride, such as the gates in a projection that interleaves queries and gates, are not
///   copied.
/// Returns N..×D in the dtype of x. Throws std::invalid_argument for any other arguments.
mx::array sigmoid_gate(const mx::array& x, const mx::array& gate, mx::StreamOrDevice s = {});

/// Graph node of sigmoid_gate. Inputs: x, gate.
class SigmoidGate : public mx::UnaryPrimitive, public Capturable {
   public:
    explicit SigmoidGate(mx::Stream stream) : mx::UnaryPrimitive(stream) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmSigmoidGate"; }
    bool is_equivalent(const mx::Primitive&) const override { return true; }
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        return {inputs[0].shape()};
    }
};

}  // namespace tiny_llm_ext
