// matmul on the GPU, as readable as it gets: a thread computes one output.
// matmul.h has the contract, matmul_launch.cpp the grid.
//
//  1. matmul_readable       this file: the definition, and the oracle of the others.
//  2. matmul_matvec.metal   for a few rows of a: a simdgroup reads one row of b side by side.
//  3. matmul_tile.metal     for many rows: tiles in threadgroup memory and the matrix units.
#include <metal_stdlib>

#include "src/matmul/matmul_params.h"

using namespace metal;
using namespace tiny_llm_ext;

// out[m, o] = Σ_i a[m, i] · b[o, i], in the order of i. Thread (o, m).
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
