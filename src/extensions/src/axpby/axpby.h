// axpby: Elementwise alpha · x + beta · y, the example operation.
//
// A minimal but complete operation. This header is the contract; axpby.cpp validates the arguments,
// builds the graph node and differentiates it; axpby_cpu.cpp evaluates it.
#pragma once

#include <vector>

#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// alpha · x + beta · y, elementwise, with NumPy broadcasting.
///
/// x, y: broadcastable shapes, any dtypes except complex64. Integers are converted to float32;
/// otherwise the result has the promoted dtype. float16 and bfloat16 are rounded once, from
/// float32. Throws std::invalid_argument for any other arguments.
/// On a GPU the result has at most 2³¹ − 1,025 elements, because thread indices are int.
mx::array axpby(const mx::array& x, const mx::array& y, float alpha, float beta,
                mx::StreamOrDevice s = {});

/// Graph node of axpby. Its two inputs have the same shape and floating dtype, and are
/// row-contiguous.
class Axpby : public mx::UnaryPrimitive {
   public:
    Axpby(mx::Stream stream, float alpha, float beta)
        : mx::UnaryPrimitive(stream), alpha_(alpha), beta_(beta) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    std::vector<mx::array> jvp(const std::vector<mx::array>& primals,
                               const std::vector<mx::array>& tangents,
                               const std::vector<int>& argnums) override;
    std::vector<mx::array> vjp(const std::vector<mx::array>& primals,
                               const std::vector<mx::array>& cotangents,
                               const std::vector<int>& argnums,
                               const std::vector<mx::array>& outputs) override;
    std::pair<std::vector<mx::array>, std::vector<int>> vmap(const std::vector<mx::array>& inputs,
                                                             const std::vector<int>& axes) override;

    const char* name() const override { return "Axpby"; }
    bool is_equivalent(const mx::Primitive& other) const override;
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    float alpha_;
    float beta_;
};

}  // namespace tiny_llm_ext
