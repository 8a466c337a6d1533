// Sums over the threads of a threadgroup, for Metal kernels.
#pragma once

#include <metal_stdlib>

namespace tiny_llm_ext {

/// The sum of every thread's value, in every thread. partial: a float for each simdgroup.
/// The order of the additions depends on the number of threads alone.
inline float threadgroup_sum(float value, threadgroup float* partial, uint simdgroup, uint lane,
                             uint simdgroups) {
    const float sum = metal::simd_sum(value);
    if (lane == 0) {
        partial[simdgroup] = sum;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return metal::simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
}

}  // namespace tiny_llm_ext
