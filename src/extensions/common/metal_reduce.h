// Threadgroup reductions for Metal kernels.
#pragma once

#include <metal_stdlib>

namespace tiny_llm_ext {

/// Sum of `value` over all threads of the threadgroup, returned to each of them. partial: scratch
/// memory, one float per simdgroup. The summation order depends only on the number of threads.
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
