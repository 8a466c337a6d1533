// Parameters of the kernels in gated_delta_rule.metal.
#pragma once

namespace tiny_llm_ext {

enum {
    DELTA_MAX_ROWS = 256,      // maximum D_k
    DELTA_SIMD_COLUMNS = 8,    // columns of a state per simdgroup
    DELTA_ROW_GROUPS = 32 / 8  // lanes that share a column
};

struct GatedDeltaRuleParams {
    int T, B, S;                          // tokens, sequences, slots
    int H_k, H_v, D_k, D_v;               // number and size of key heads and value heads
    long qkv_stride, a_stride, b_stride;  // row strides in elements
};

}  // namespace tiny_llm_ext
