// matmul: out = a · bᵀ for matrices that are not quantized.
//
//     out[m, o] = Σ_i a[m, i] · b[o, i]
//
// Products are exact and sums are float32, rounded once at the end. Every out[m, o] is summed in
// one order that depends on i alone: the result of a row is the same to the last bit however many
// rows are computed with it, and however many threads compute them.
//
// MLX has a matmul; for half-precision matrices on a CPU it takes about ten times as long as this.
#pragma once

#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// a · bᵀ, for matrices that are not quantized.
///
/// a: N..×I, float32, float16 or bfloat16. b: O×I, dtype of a.
/// Returns N..×O in their dtype. Throws std::invalid_argument for anything else.
mx::array matmul(const mx::array& a, const mx::array& b, mx::StreamOrDevice s = {});

/// The graph node. Inputs: a, b.
class Matmul : public mx::UnaryPrimitive, public Capturable {
   public:
    explicit Matmul(mx::Stream stream) : mx::UnaryPrimitive(stream) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmMatmul"; }
    bool is_equivalent(const mx::Primitive& other) const override { return true; }
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
};

}  // namespace tiny_llm_ext
