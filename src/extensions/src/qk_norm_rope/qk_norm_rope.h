// qk_norm_rope: Fused RMSNorm, RoPE and head-major layout of queries and keys.
//
// Each head is normalized, rotated by the angles of its token's position, and transposed to the
// head-major layout of attention:
//
//     n = rms_norm(x[b, l, h], weight, eps)
//     out[b, h, l, i]     = n[i] · cos[b, l, i] − n[i + W] · sin[b, l, i]
//     out[b, h, l, i + W] = n[i] · sin[b, l, i] + n[i + W] · cos[b, l, i],   i < W
//     out[b, h, l, i]     = n[i],                                            i ≥ 2·W
//
// W is the number of angles per token: D/2 for most models. If it is smaller, only the first 2·W
// dimensions are rotated (partial RoPE).
//
// Models without QK norms (Llama, Qwen2) pass no weight; then n = x.
//
// n is rounded as in rms_norm; the rotation is computed in float32 and rounded once. The values
// equal tiny_llm.positional_encoding.RoPE after rms_norm bit for bit. Cosines and sines are inputs
// because all layers of a step share them.
#pragma once

#include <optional>
#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "src/qk_norm_rope/qk_norm_rope_params.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// rms_norm of each head, then RoPE, in the layout of attention.
///
/// x: B×L×H×D, float32, float16 or bfloat16; D even. Views with contiguous heads are not copied.
/// weight: D, float32 or the dtype of x; None skips the norm. eps: as in rms_norm.
/// cos, sin: B×L×W or 1×L×W, float32, W from 1 to D/2; pair i of a head is (x[i], x[i + W]).
/// Returns B×H×L×D in the dtype of x. Throws std::invalid_argument for any other arguments.
mx::array qk_norm_rope(const mx::array& x, const std::optional<mx::array>& weight, float eps,
                       const mx::array& cos, const mx::array& sin, mx::StreamOrDevice s = {});

/// Graph node of qk_norm_rope. Inputs: x, weight (x again if None), cos, sin.
class QkNormRope : public mx::UnaryPrimitive, public Capturable {
   public:
    QkNormRope(mx::Stream stream, float eps, bool normalizes)
        : mx::UnaryPrimitive(stream), eps_(eps), normalizes_(normalizes) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmQkNormRope"; }
    bool is_equivalent(const mx::Primitive& other) const override;
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    QkNormRopeParams params_of(const mx::array& x, const mx::array& cos) const;

    float eps_;
    bool normalizes_;
};

}  // namespace tiny_llm_ext
