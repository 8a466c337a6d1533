// matmul: Product a · bᵀ of unquantized matrices.
//
//     out[m, o] = Σ_i a[m, i] · b[o, i]
//
// Products are exact and sums are float32, rounded once at the end. Batch invariance: the summation
// order of out[m, o] depends on i alone, so a row has the same bits for any number of rows and
// threads.
//
// MLX's own matmul takes about ten times as long for half-precision matrices on a CPU.
#pragma once

#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// a · bᵀ of unquantized matrices.
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
