#include "src/gated_delta_rule/gated_delta_rule_launch.h"

namespace tiny_llm_ext {

MetalLaunch gated_delta_rule_factors_launch(const GatedDeltaRuleParams& params, Format format,
                                            int max_threads) {
    const int64_t heads = static_cast<int64_t>(params.T) * params.H_k;
    return simdgroup_launch(kernel_name("gated_delta_rule_factors", format), heads, max_threads,
                            params);
}

MetalLaunch gated_delta_rule_recurrence_launch(const GatedDeltaRuleParams& params,
                                               int max_threads) {
    const int64_t lanes = static_cast<int64_t>(params.D_v) * DELTA_ROW_GROUPS;
    const int threads = threads_for(lanes, 128, max_threads);
    return {
        .kernel = "gated_delta_rule_recurrence_" + std::string(params.D_k <= 128 ? "128" : "256"),
        .groups = {.x = ceil_div(lanes, threads), .y = params.H_v, .z = params.B},
        .threads = {.x = threads},
        .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
