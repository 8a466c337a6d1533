// gated_delta_rule: argument checks and construction of the graph node.
#include "src/gated_delta_rule/gated_delta_rule.h"

#include "common/checks.h"
#include "common/gpu.h"
#include "common/state_arguments.h"

namespace tiny_llm_ext {

namespace {

mx::Shape recurrence_shape(const mx::array& states, const mx::array& qkv) {
    return {qkv.shape(0), states.shape(1), states.shape(3)};
}

}  // namespace

std::pair<mx::array, mx::array> gated_delta_rule(const mx::array& qkv, const mx::array& a,
                                                 const mx::array& b, const mx::array& A_log,
                                                 const mx::array& dt_bias, const mx::array& states,
                                                 const mx::array& cu_seqlens,
                                                 const mx::array& read_slots,
                                                 const mx::array& write_slots, int num_k_heads,
                                                 bool overwrite, mx::StreamOrDevice s) {
    constexpr const char* NAME = "gated_delta_rule";
    check(states.ndim() == 4, NAME, "expected states S×H_v×D_k×D_v, got shape ", states.shape());
    const int H_v = states.shape(1), D_k = states.shape(2), D_v = states.shape(3);
    check(D_k <= 256, NAME, "expected key heads of size at most 256, got states of shape ",
          states.shape());
    check(num_k_heads >= 1 && H_v % num_k_heads == 0, NAME,
          "expected num_k_heads to divide the value heads of the states, ", H_v, ", got ",
          num_k_heads);
    for (const auto& [array, name] : {std::pair(&qkv, "qkv"), std::pair(&states, "states"),
                                      std::pair(&A_log, "A_log"), std::pair(&dt_bias, "dt_bias")}) {
        check(array->dtype() == mx::float32, NAME, "expected ", name, " in float32, got ",
              array->dtype());
    }
    const int64_t channels = 2LL * num_k_heads * D_k + int64_t{H_v} * D_v;
    check(qkv.ndim() == 2 && qkv.shape(1) == channels, NAME, "expected qkv T×", channels,
          " for the heads of the states, got shape ", qkv.shape());
    const int T = qkv.shape(0);
    check(is_float(a.dtype()) && b.dtype() == a.dtype(), NAME,
          "expected a and b both in float32, float16 or bfloat16, got ", a.dtype(), " and ",
          b.dtype());
    const mx::Shape gates = {T, H_v}, heads = {H_v};
    check(a.shape() == gates && b.shape() == gates, NAME, "expected a and b of shape ", gates,
          ", got ", a.shape(), " and ", b.shape());
    check(A_log.shape() == heads && dt_bias.shape() == heads, NAME,
          "expected A_log and dt_bias of shape ", heads, ", got ", A_log.shape(), " and ",
          dt_bias.shape());
    check_state_slots(NAME, T, cu_seqlens, read_slots, write_slots);
    const auto outputs = mx::array::make_arrays(
        {states.shape(), recurrence_shape(states, qkv)}, {mx::float32, mx::float32},
        wrap_if_emulated(std::make_shared<GatedDeltaRule>(stream_for(NAME, a.dtype(), s),
                                                          num_k_heads, overwrite)),
        {states, qkv, a, b, A_log, dt_bias, cu_seqlens, read_slots, write_slots});
    return {outputs[1], outputs[0]};
}

std::vector<mx::Shape> GatedDeltaRule::output_shapes(const std::vector<mx::array>& inputs) {
    return {inputs[0].shape(), recurrence_shape(inputs[0], inputs[1])};
}

}  // namespace tiny_llm_ext
