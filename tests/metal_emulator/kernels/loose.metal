// Seeded faults: kernels whose results depend on arithmetic that Metal leaves unspecified.
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

using namespace metal;

/// Sum of 32 numbers, which Metal may add in any order.
kernel void sum(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                uint lane [[thread_index_in_simdgroup]]) {
    out[lane] = simd_sum(x[lane]);
}

/// a · b + c of 8×8 matrices.
kernel void product(device const float* x [[buffer(0)]], device float* out [[buffer(1)]]) {
    simdgroup_float8x8 a, b, c;
    simdgroup_load(a, x, 8);
    simdgroup_load(b, x + 64, 8);
    simdgroup_load(c, x + 128, 8);
    simdgroup_multiply_accumulate(c, a, b, c);
    simdgroup_store(c, out, 8);
}

/// x² − y: 0 where y is the rounded square, unless the compiler fuses the operations.
kernel void difference(device const float* x [[buffer(0)]], device const float* y [[buffer(1)]],
                       device float* out [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    out[i] = x[i] * x[i] - y[i];
}

kernel void exponential(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                        uint i [[thread_position_in_grid]]) {
    out[i] = exp(x[i]);
}

kernel void scaled(device const float* x [[buffer(0)]], constant float& by [[buffer(1)]],
                   device float* out [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    out[i] = x[i] * by;
}
