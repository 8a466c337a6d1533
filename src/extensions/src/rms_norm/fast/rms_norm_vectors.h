// Factor of RMSNorm, shared by all vector kernels with a norm.
#pragma once

#include "common/simd.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

/// 1 / √(mean of squares + eps) of the D elements of x.
///
/// Four accumulators hide the addition latency of four cycles.
template <Format F>
inline float rms_norm_factor(const void* x, int64_t D, float eps) {
    // [task 4.5.2 factor]
    Floats sums[4] = {};
    int64_t i = 0;
    for (; i + 4 * LANES <= D; i += 4 * LANES) {
        for (int j = 0; j < 4; j++) {
            const Floats v = load(x, i + j * LANES, F);
            sums[j] = fma(v, v, sums[j]);
        }
    }
    for (; i + LANES <= D; i += LANES) {
        const Floats v = load(x, i, F);
        sums[0] = fma(v, v, sums[0]);
    }
    if (const int rest = static_cast<int>(D - i); rest > 0) {
        const Floats v = load(x, i, F, rest);
        sums[1] = fma(v, v, sums[1]);
    }
    const float squares = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    return 1 / __builtin_sqrtf(squares / static_cast<float>(D) + eps);
    // [/task 4.5.2 factor]
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
