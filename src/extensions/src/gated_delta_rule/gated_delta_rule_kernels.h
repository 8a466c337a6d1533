// CPU kernels of gated_delta_rule on raw pointers.
#pragma once

#include <stdint.h>

#include "common/half.h"
#include "common/state_slots.h"

namespace tiny_llm_ext {

/// Maximum columns of a state per kernel call, so that D_k × 32 floats stay in the L1 cache.
constexpr int64_t DELTA_COLUMNS = 32;

/// Factors of one token and value head, computed before the recurrence.
struct DeltaFactors {
    float q, k;   // normalize query and key: 1 / norm, for the query also divided by √D_k
    float beta;   // β
    float decay;  // γ
};

struct GatedDeltaRuleJob {
    int64_t H_k, H_v, D_k, D_v;  // number and size of key heads and value heads
    Format format;               // of a and b
    const float* qkv;
    const void *a, *b;
    const float *A_log, *dt_bias;  // H_v
    float* states;                 // S × H_v × D_k × D_v
    float* o;                      // T × H_v × D_v
    DeltaFactors* factors;         // T × H_v
    int64_t qkv_stride, a_stride, b_stride;
    StateSlots slots;
};

/// Functions for both steps of the operation. Instances: the reference, and gated_delta_rule in
/// fast/gated_delta_rule_simd.cpp.
struct GatedDeltaRuleKernel {
    /// Computes the factors of tokens first … last − 1.
    void (*factors)(const GatedDeltaRuleJob& job, int64_t first, int64_t last);
    /// Computes columns first … last − 1, at most DELTA_COLUMNS, of a head's state and output for
    /// all tokens of a sequence.
    void (*recurrence)(const GatedDeltaRuleJob& job, int64_t sequence, int64_t head, int64_t first,
                       int64_t last);
};

extern const GatedDeltaRuleKernel gated_delta_rule_reference;

/// Sets β and γ of a token and value head. Scalar code, so that all instruction sets produce the
/// same bits.
void set_gates(const GatedDeltaRuleJob& job, int64_t token, int64_t head, DeltaFactors& factors);

}  // namespace tiny_llm_ext
