// causal_conv1d: Causal depthwise convolution with state, followed by SiLU.
//
// For channel c of token t, the i-th of its sequence in this step (inputs before the first token
// come from `conv_states`):
//
//     y[t, c] = silu(Σ_j weight[c, j] · input[i − (K − 1) + j, c]),   j = 0 … K − 1
//
// Products are summed in float32 from the oldest input to the newest, so that the bits do not
// depend on how a sequence is split into steps.
//
// State slots: a slot holds the state after some token of a sequence, here its last K − 1 inputs,
// oldest first. A step reads a sequence's slot once, before its first token, and stores the state
// after token t in slot write_slots[t]. A sequence may read one slot and write another, so a slot
// that no sequence writes remains valid as a checkpoint. Slots are known only at evaluation, too
// late for an exception, but invalid values never cause an out-of-bounds access:
//   - a slot outside 0 … S − 1 reads as zeros and stores nothing;
//   - cu_seqlens are clamped to 0 … T. Outputs of a token in no sequence are undefined.
// A slot that a sequence writes may be the one that it reads, but no other sequence may read or
// write it in the same step.
#pragma once

#include <utility>
#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Causal depthwise convolution with SiLU, and the updated states.
///
/// x: T×C, float32, float16 or bfloat16: the tokens of B sequences, concatenated; C channels.
/// weight: C×K, K from 2 to 8, float32 or the dtype of x. The transpose of a row-contiguous K×C
///   array is the fastest layout to read.
/// conv_states: S×(K−1)×C in the dtype of x: S slots with the last K − 1 inputs, oldest first.
///   Updated in place: on the CPU if the caller keeps no reference to them, on a GPU also if
///   `overwrite` is set.
/// cu_seqlens: B+1 int32, ascending from 0 to T: sequence s has the tokens cu_seqlens[s] to
///   cu_seqlens[s + 1] − 1.
/// read_slots: B int32: slot of the state before a sequence's first token; −1: a state of zeros.
/// write_slots: T int32: slot that receives the state after the token; −1: not stored.
/// overwrite: whether a GPU may overwrite the states, as in paged_cache_write: the caller must hold
///   no other array that shares their memory.
///
/// Returns y T×C float32, and conv_states S×(K−1)×C.
/// Throws std::invalid_argument for any other arguments.
std::pair<mx::array, mx::array> causal_conv1d(const mx::array& x, const mx::array& weight,
                                              const mx::array& conv_states,
                                              const mx::array& cu_seqlens,
                                              const mx::array& read_slots,
                                              const mx::array& write_slots, bool overwrite = false,
                                              mx::StreamOrDevice s = {});

/// Graph node of causal_conv1d. Inputs, any strides: conv_states, x, weight, cu_seqlens,
/// read_slots, write_slots. Outputs: conv_states, y.
class CausalConv1d : public mx::Primitive, public Capturable {
   public:
    CausalConv1d(mx::Stream stream, bool overwrite)
        : mx::Primitive(stream), overwrite_(overwrite) {}

    void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
    void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;

    const char* name() const override { return "TinyLlmCausalConv1d"; }
    bool is_equivalent(const mx::Primitive&) const override { return true; }
    bool writes_in_place() const override { return true; }
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        return {inputs[0].shape(), inputs[1].shape()};
    }

   private:
    bool overwrite_;
};

}  // namespace tiny_llm_ext
