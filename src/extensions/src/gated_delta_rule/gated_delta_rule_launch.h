// Launches of gated_delta_rule.metal: the factors, then the recurrence.
#pragma once

#include "common/metal_launch.h"
#include "src/gated_delta_rule/gated_delta_rule_params.h"

namespace tiny_llm_ext {

/// Buffers: qkv, a and b (strided rows of T), A_log and dt_bias H_v; factors T×H_v×4.
MetalLaunch gated_delta_rule_factors_launch(const GatedDeltaRuleParams& params, Format format,
                                            int max_threads);

/// Buffers: qkv (strided rows of T), factors T×H_v×4, cu_seqlens B+1, read_slots B, write_slots T;
/// states S×H_v×D_k×D_v, o T×H_v×D_v.
MetalLaunch gated_delta_rule_recurrence_launch(const GatedDeltaRuleParams& params, int max_threads);

}  // namespace tiny_llm_ext
