// gated_delta_rule: Recurrence of a Gated DeltaNet over a ragged batch, with state.
//
// For each token, in order, and each value head h with key head h / (H_v / H_k):
//
//     q ← q / √(Σ q² + 1e-6) / √D_k,   k ← k / √(Σ k² + 1e-6)
//     β = σ(b),   γ = exp(−exp(A_log) · softplus(a + dt_bias))
//     S ← γ S,   δ = β (v − Sᵀk),   S ← S + k δᵀ,   o = Sᵀq           S: D_k×D_v
//
// Computed in float32, token by token: on one instruction set or GPU, the bits depend neither on
// how a sequence is split into steps, nor on the other sequences, nor on the number of threads.
// Across instruction sets and GPUs, results differ by a few float32 rounding errors, because
// kernels sum in different orders, and some normalize q and k in the sums instead of by element.
//
// State slots: as in causal_conv1d.h.
#pragma once

#include <utility>
#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Outputs of a Gated DeltaNet's recurrence, and the updated states.
///
/// qkv: T×(2·H_k·D_k + H_v·D_v) float32: H_k query heads, H_k key heads and H_v value heads of each
///   of T tokens.
/// a, b: T×H_v, both float32, float16 or bfloat16.
/// A_log, dt_bias: H_v float32.
/// states: S×H_v×D_k×D_v float32, S slots, D_k up to 256. Updated in place as in causal_conv1d.
/// cu_seqlens, read_slots, write_slots, overwrite: as in causal_conv1d.
/// num_k_heads: H_k; H_k divides H_v.
///
/// Returns o T×H_v×D_v float32, and states S×H_v×D_k×D_v.
/// Throws std::invalid_argument for any other arguments.
std::pair<mx::array, mx::array> gated_delta_rule(const mx::array& qkv, const mx::array& a,
                                                 const mx::array& b, const mx::array& A_log,
                                                 const mx::array& dt_bias, const mx::array& states,
                                                 const mx::array& cu_seqlens,
                                                 const mx::array& read_slots,
                                                 const mx::array& write_slots, int num_k_heads,
                                                 bool overwrite = false, mx::StreamOrDevice s = {});

/// Graph node of gated_delta_rule. Inputs, any strides: states, qkv, a, b, A_log, dt_bias,
/// cu_seqlens, read_slots, write_slots. Outputs: states, o.
class GatedDeltaRule : public mx::Primitive, public Capturable {
   public:
    GatedDeltaRule(mx::Stream stream, int num_k_heads, bool overwrite)
        : mx::Primitive(stream), num_k_heads_(num_k_heads), overwrite_(overwrite) {}

    void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
    void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;

    const char* name() const override { return "TinyLlmGatedDeltaRule"; }
    bool is_equivalent(const mx::Primitive& other) const override {
        return num_k_heads_ == static_cast<const GatedDeltaRule&>(other).num_k_heads_;
    }
    bool writes_in_place() const override { return true; }
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    int num_k_heads_;
    bool overwrite_;
};

}  // namespace tiny_llm_ext
