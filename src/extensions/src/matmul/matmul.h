// matmul: Matrix multiplication a · bᵀ with unquantized b.
//
//     out[m, o] = Σ_i a[m, i] · b[o, i]
//
// Sums are float32 and rounded once at the end; products of 16-bit elements are exact in float32.
// Batch invariance: on the CPU, the summation order depends only on the length of a row, so a row
// has the same bits for any number of rows and threads. On a GPU, it changes above 8 rows
// (MATVEC_ROWS).
//
// mx.matmul takes about ten times as long as this operation for 16-bit matrices on a CPU.
#pragma once

#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// a · bᵀ, unquantized.
///
/// a: N..×I, float32, float16 or bfloat16. b: O×I, dtype of a.
/// Returns N..×O in the dtype of a. Throws std::invalid_argument for any other arguments.
mx::array matmul(const mx::array& a, const mx::array& b, mx::StreamOrDevice s = {});

/// Graph node of matmul. Inputs: a, b.
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
