#include <metal_stdlib>
using namespace metal;

// out[row] = the sum of a row of x, by a threadgroup of 64 threads. A barrier is missing.
[[kernel]] void row_sum(device const float* x [[buffer(0)]],  // rows × 64
                        device float* out [[buffer(1)]],      // rows
                        uint row [[threadgroup_position_in_grid]],
                        uint i [[thread_index_in_threadgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float partial[2];
    const float sum = simd_sum(x[row * 64 + i]);
    if (lane == 0) {
        partial[simdgroup] = sum;
    }
    if (i == 0) {
        out[row] = partial[0] + partial[1];
    }
}
