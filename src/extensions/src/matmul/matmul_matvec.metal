// matmul for a few rows of a, as in decoding: bound by reading b from memory.
//
// A simdgroup computes OUTPUTS outputs of ROWS rows of a. Its 32 lanes read adjacent elements of a
// row of b, 16 bytes each; a lane loads its elements of a to registers once for all outputs.
//
// The summation order depends only on I: with V elements per 16 bytes, lane l accumulates elements
// V·l to V·l + V − 1 of each block of 32·V, then the lanes are reduced. It is independent of ROWS
// and WHOLE, so a row of a has the same bits in every batch that this kernel computes.
// matmul_tile.metal, for larger batches, sums in a different order, so its bits may differ.
#include <metal_stdlib>

#include "src/matmul/matmul_params.h"

using namespace metal;
using namespace tiny_llm_ext;

constant constexpr int LANES = 32;
constant constexpr int OUTPUTS = 4;  // per simdgroup

// Loads this lane's next 16 bytes of a row as float32; `left` elements of the row remain, and
// values past them are zero. WHOLE: the 16 bytes are aligned and entirely inside the row.
template <typename T, bool WHOLE>
void load_values(device const T* row, int left, thread float* x) {
    constexpr int VALUES = 16 / sizeof(T);
    if (WHOLE) {
        for (int v = 0; v < VALUES; v += 4) {
            const vec<T, 4> four = *(device const vec<T, 4>*)(row + v);
            for (int i = 0; i < 4; i++) {
                x[v + i] = float(four[i]);
            }
        }
    } else {
        for (int v = 0; v < VALUES; v++) {
            x[v] = v < left ? float(row[v]) : 0.0f;
        }
    }
}

template <typename T, int ROWS, bool WHOLE>
[[kernel]] void matmul_matvec(device const T* a [[buffer(0)]],  // M × I
                              device const T* b [[buffer(1)]],  // O × I
                              device T* out [[buffer(2)]],      // M × O
                              constant const MatmulParams& params [[buffer(3)]],
                              uint3 group [[threadgroup_position_in_grid]],  // x: rows, y: outputs
                              uint simdgroup [[simdgroup_index_in_threadgroup]],
                              uint simdgroups [[simdgroups_per_threadgroup]],
                              uint lane [[thread_index_in_simdgroup]]) {
    constexpr int VALUES = 16 / sizeof(T);
    const int M = params.M, O = params.O, I = params.I;
    const int first_output = (group.y * simdgroups + simdgroup) * OUTPUTS;
    const int first_row = group.x * ROWS;
    if (first_output >= O) {
        return;
    }
    // Index of this lane's first element in each row. Indices past the last output or row repeat
    // the last one, whose result is then not stored again.
    const int first = int(lane) * VALUES;
    a += long(first_row) * params.a_stride + first;
    b += long(first_output) * params.b_stride + first;
    long output[OUTPUTS], row[ROWS];  // element offsets of rows in b and a
    for (int o = 0; o < OUTPUTS; o++) {
        output[o] = min(o, O - 1 - first_output) * long(params.b_stride);
    }
    for (int r = 0; r < ROWS; r++) {
        row[r] = min(r, M - 1 - first_row) * long(params.a_stride);
    }

    float total[OUTPUTS][ROWS];
    for (int o = 0; o < OUTPUTS; o++) {
        for (int r = 0; r < ROWS; r++) {
            total[o][r] = 0;
        }
    }
    for (int left = I - first; left > 0; left -= LANES * VALUES) {
        float x[ROWS][VALUES];
        for (int r = 0; r < ROWS; r++) {
            load_values<T, WHOLE>(a + row[r], left, x[r]);
        }
        for (int o = 0; o < OUTPUTS; o++) {
            float w[VALUES];
            load_values<T, WHOLE>(b + output[o], left, w);
            for (int r = 0; r < ROWS; r++) {
                for (int v = 0; v < VALUES; v++) {
                    total[o][r] = fma(w[v], x[r][v], total[o][r]);
                }
            }
        }
        a += LANES * VALUES;
        b += LANES * VALUES;
    }
    for (int r = 0; r < ROWS; r++) {
        for (int o = 0; o < OUTPUTS; o++) {
            const float result = simd_sum(total[o][r]);
            if (lane == 0 && first_row + r < M && first_output + o < O) {
                out[long(first_row + r) * O + first_output + o] = T(result);
            }
        }
    }
}

#define INSTANTIATE(variant, name, T, ROWS, WHOLE)                                \
    template[[host_name("matmul_matvec" #ROWS variant "_" name)]] [[kernel]] void \
    matmul_matvec<T, ROWS, WHOLE>(device const T*, device const T*, device T*,    \
                                  constant const MatmulParams&, uint3, uint, uint, uint);

#define INSTANTIATE_ROWS(name, T)                \
    INSTANTIATE("", name, T, 1, true)            \
    INSTANTIATE("", name, T, 2, true)            \
    INSTANTIATE("", name, T, 4, true)            \
    INSTANTIATE("_unaligned", name, T, 1, false) \
    INSTANTIATE("_unaligned", name, T, 2, false) \
    INSTANTIATE("_unaligned", name, T, 4, false)

INSTANTIATE_ROWS("float32", float)
INSTANTIATE_ROWS("float16", half)
INSTANTIATE_ROWS("bfloat16", bfloat)
