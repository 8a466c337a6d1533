// causal_conv1d: argument checks and construction of the graph node.
#include "src/causal_conv1d/causal_conv1d.h"

#include "common/checks.h"
#include "common/gpu.h"
#include "common/state_arguments.h"

namespace tiny_llm_ext {

std::pair<mx::array, mx::array> causal_conv1d(const mx::array& x, const mx::array& weight,
                                              const mx::array& conv_states,
                                              const mx::array& cu_seqlens,
                                              const mx::array& read_slots,
                                              const mx::array& write_slots, bool overwrite,
                                              mx::StreamOrDevice s) {
    constexpr const char* NAME = "causal_conv1d";
    check_float(NAME, "x", x);
    check(x.ndim() == 2, NAME, "expected x T×C, got shape ", x.shape());
    const int T = x.shape(0), C = x.shape(1);
    check(weight.ndim() == 2 && weight.shape(0) == C, NAME, "expected weight ", C,
          "×K, one row per channel of x, got shape ", weight.shape());
    const int K = weight.shape(1);
    check(K >= 2 && K <= 8, NAME, "expected a convolution width K from 2 to 8, got ", K);
    check(weight.dtype() == mx::float32 || weight.dtype() == x.dtype(), NAME,
          "expected weight in float32 or the dtype of x, ", x.dtype(), ", got ", weight.dtype());
    check(conv_states.ndim() == 3 && conv_states.shape(1) == K - 1 && conv_states.shape(2) == C,
          NAME, "expected conv_states S×", K - 1, "×", C, ", got shape ", conv_states.shape());
    check_same_dtype(NAME, "conv_states", conv_states, "x", x);
    check_state_slots(NAME, T, cu_seqlens, read_slots, write_slots);
    const auto outputs = mx::array::make_arrays(
        {conv_states.shape(), x.shape()}, {x.dtype(), mx::float32},
        wrap_if_emulated(std::make_shared<CausalConv1d>(stream_for(NAME, x.dtype(), s), overwrite)),
        {conv_states, x, weight, cu_seqlens, read_slots, write_slots});
    return {outputs[1], outputs[0]};
}

}  // namespace tiny_llm_ext
