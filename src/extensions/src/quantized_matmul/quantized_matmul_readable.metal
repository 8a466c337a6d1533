// Readable quantized_matmul on the GPU: one thread per output. Contract: quantized_matmul.h; grid:
// quantized_matmul_launch.cpp.
//
//  1. quantized_matmul_readable      this file. A thread iterates over a whole row of weights, so
//                                    the lanes of a simdgroup read 32 distant rows at once, and
//                                    each row of a reads all weights again.
//  2. quantized_matmul_matvec.metal  few rows of a: a simdgroup reads adjacent words of one row of
//                                    weights.
//  3. quantized_matmul_tile.metal    many rows: a threadgroup unpacks a tile of weights once and
//                                    multiplies it with simdgroup matrices.
//
// Only quantized_matmul_readable allows a and the scales to differ in dtype.
#include <metal_stdlib>

#include "src/quantized_matmul/quantized_matmul_params.h"

using namespace metal;
using namespace tiny_llm_ext;

// out[m, o] = Σ_g ( scale[o, g] · Σ_i q[o, i] · a[m, i]  +  bias[o, g] · Σ_i a[m, i] ), in the
// order of i. One thread per (o, m). The grid is rounded up to whole threadgroups, so some threads
// are out of range.
template <typename T, typename S, int BITS, int GROUP_SIZE>
[[kernel]] void quantized_matmul_readable(device const S* scales [[buffer(0)]],  // O × I/GROUP_SIZE
                                          device const S* biases [[buffer(1)]],  // O × I/GROUP_SIZE
                                          device const T* a [[buffer(2)]],       // M × I
                                          device const uint* b [[buffer(3)]],    // O × I·BITS/32
                                          device T* out [[buffer(4)]],           // M × O
                                          constant const QuantizedMatmulParams& params
                                          [[buffer(5)]],
                                          uint2 position [[thread_position_in_grid]]) {
    const long o = position.x, m = position.y;
    if (o >= params.O || m >= params.M) {
        return;
    }
    // [task 2.3.3 output]
    constexpr int WEIGHTS_PER_WORD = 32 / BITS;
    constexpr uint MASK = (1u << BITS) - 1;
    const int groups = params.I / GROUP_SIZE;
    device const uint* word = b + o * (params.I / WEIGHTS_PER_WORD);
    device const T* x = a + m * params.I;

    float total = 0;
    for (int g = 0; g < groups; g++) {
        float products = 0;  // Σ q·a of the group
        float sum = 0;       // Σ a of the group
        for (int w = 0; w < GROUP_SIZE / WEIGHTS_PER_WORD; w++) {
            const uint packed = *word++;
            for (int i = 0; i < WEIGHTS_PER_WORD; i++) {
                const float q = packed >> (i * BITS) & MASK;
                const float value = *x++;
                products = fma(q, value, products);
                sum += value;
            }
        }
        total = fma(float(scales[o * groups + g]), products, total);
        total = fma(float(biases[o * groups + g]), sum, total);
    }
    out[m * params.O + o] = T(total);
    // [/task 2.3.3 output]
}

// Instantiating a template creates a kernel, under the name used by the host.
#define INSTANTIATE(name, T, S, BITS, GROUP_SIZE)                                         \
    template [[host_name("quantized_matmul_readable_" name "_b" #BITS                     \
                         "_g" #GROUP_SIZE)]] [[kernel]] void                              \
    quantized_matmul_readable<T, S, BITS, GROUP_SIZE>(                                    \
        device const S*, device const S*, device const T*, device const uint*, device T*, \
        constant const QuantizedMatmulParams&, uint2);

#define INSTANTIATE_FORMATS(name, T, S) \
    INSTANTIATE(name, T, S, 4, 32)      \
    INSTANTIATE(name, T, S, 4, 64)      \
    INSTANTIATE(name, T, S, 4, 128)     \
    INSTANTIATE(name, T, S, 8, 32)      \
    INSTANTIATE(name, T, S, 8, 64)      \
    INSTANTIATE(name, T, S, 8, 128)

INSTANTIATE_FORMATS("bfloat16", bfloat, bfloat)
INSTANTIATE_FORMATS("float16", half, half)
INSTANTIATE_FORMATS("bfloat16_scales_float16", bfloat, half)
INSTANTIATE_FORMATS("float16_scales_bfloat16", half, bfloat)
