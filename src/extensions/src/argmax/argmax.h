// argmax: the likeliest token.
//
//     out[n] = the smallest i with x[n, i] = max x[n, :]
//
// A vocabulary has 151,936 tokens, and MLX's own reads them with one thread, one at a time: by then
// the rest of a decode step is fast enough for that to show. NaN is never the largest; a row of
// nothing but NaN and −∞ gives 0.
#pragma once

#include <vector>

#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Where each row is largest: the first place, if there are several.
///
/// x: N..×V, float32, float16 or bfloat16; V from 1 to 2³¹ − 1. NaN is never the largest.
/// Returns N.. in uint32. Throws std::invalid_argument for anything else. On a GPU it is MLX's own.
mx::array argmax(const mx::array& x, mx::StreamOrDevice s = {});

/// The graph node on the CPU. Input: x.
class Argmax : public mx::UnaryPrimitive {
   public:
    explicit Argmax(mx::Stream stream) : mx::UnaryPrimitive(stream) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmArgmax"; }
    bool is_equivalent(const mx::Primitive& other) const override { return true; }
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
};

}  // namespace tiny_llm_ext
