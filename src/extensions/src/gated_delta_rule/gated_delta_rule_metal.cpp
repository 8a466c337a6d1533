// gated_delta_rule on the GPU: eval_gpu, which launches the Metal kernels.
#include "common/checks.h"
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/gated_delta_rule/gated_delta_rule.h"
#include "src/gated_delta_rule/gated_delta_rule_launch.h"

namespace tiny_llm_ext {

void GatedDeltaRule::eval_gpu(const std::vector<mx::array>& inputs,
                              std::vector<mx::array>& outputs) {
    auto &states = outputs[0], &o = outputs[1];
    metal::update(inputs[0], states, overwrite_, stream());
    allocate(o);
    const auto [qkv, qkv_stride] = metal::rows_of(inputs[1], stream());
    const auto [a, a_stride] = metal::rows_of(inputs[2], stream());
    const auto [b, b_stride] = metal::rows_of(inputs[3], stream());
    std::vector<mx::array> small;  // A_log, dt_bias, cu_seqlens, read_slots, write_slots
    for (size_t i = 4; i < inputs.size(); i++) {
        small.push_back(metal::row_contiguous(inputs[i], stream()));
    }
    const GatedDeltaRuleParams params = {
        .T = o.shape(0),
        .B = small[3].shape(0),
        .S = states.shape(0),
        .H_k = num_k_heads_,
        .H_v = states.shape(1),
        .D_k = states.shape(2),
        .D_v = states.shape(3),
        .qkv_stride = static_cast<long>(qkv_stride),
        .a_stride = static_cast<long>(a_stride),
        .b_stride = static_cast<long>(b_stride),
    };
    if (o.size() == 0 || params.B == 0) {
        return;
    }
    const auto factors = metal::temporary({params.T, params.H_v, 4}, mx::float32, stream());
    const auto factors_launch = [&](int max_threads) {
        return gated_delta_rule_factors_launch(params, format_of(a.dtype()), max_threads);
    };
    const auto recurrence_launch = [&](int max_threads) {
        return gated_delta_rule_recurrence_launch(params, max_threads);
    };
    metal::encode(stream(), factors_launch, {qkv, a, b, small[0], small[1]}, {factors});
    metal::encode(stream(), recurrence_launch, {qkv, factors, small[2], small[3], small[4]},
                  {states, o});
}

}  // namespace tiny_llm_ext
