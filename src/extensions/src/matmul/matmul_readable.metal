// Readable matmul on the GPU: one thread per output. Contract: matmul.h; grid: matmul_launch.cpp.
//
//  1. matmul_readable       this file: the definition and the oracle of the other kernels.
//  2. matmul_matvec.metal   few rows of a: a simdgroup reads adjacent elements of a row of b.
//  3. matmul_tile.metal     many rows: tiles in threadgroup memory and simdgroup matrices.
#include <metal_stdlib>

#include "src/matmul/matmul_params.h"

using namespace metal;
using namespace tiny_llm_ext;

// out[m, o] = Σ_i a[m, i] · b[o, i], in the order of i. One thread per (o, m).
template <typename T>
[[kernel]] void matmul_readable(device const T* a [[buffer(0)]],  // M × I
                                device const T* b [[buffer(1)]],  // O × I
                                device T* out [[buffer(2)]],      // M × O
                                constant const MatmulParams& params [[buffer(3)]],
                                uint2 position [[thread_position_in_grid]]) {
    const long o = position.x, m = position.y;
    if (o >= params.O || m >= params.M) {
        return;
    }
    float total = 0;
    for (int i = 0; i < params.I; i++) {
        total = fma(float(a[m * params.a_stride + i]), float(b[o * params.b_stride + i]), total);
    }
    out[m * params.O + o] = T(total);
}

#define INSTANTIATE(name, T)                                                            \
    template [[host_name("matmul_readable_" name)]] [[kernel]] void matmul_readable<T>( \
        device const T*, device const T*, device T*, constant const MatmulParams&, uint2);

INSTANTIATE("float32", float)
INSTANTIATE("float16", half)
INSTANTIATE("bfloat16", bfloat)
