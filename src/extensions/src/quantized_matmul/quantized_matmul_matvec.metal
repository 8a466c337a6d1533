// quantized_matmul for a few rows of a, as in decoding: bound by reading the weights from memory.
//
// A simdgroup computes OUTPUTS outputs of ROWS rows of a. Its 32 lanes read adjacent words of a row
// of weights, 8 or 16 bytes each. A lane's elements of a stay in registers for all outputs, and its
// unpacked weights serve all rows. Lanes are reduced once, at the very end. Threadgroup memory is
// not used.
//
// The summation order depends only on I: lane l accumulates elements 16·l to 16·l + 15 of each
// block of 512, then the lanes are reduced. It is independent of ROWS, so a row of a has the same
// bits in every batch that this kernel computes. quantized_matmul_tile.metal, for larger batches,
// sums in a different order, so its bits may differ.
#include <metal_stdlib>

#include "src/quantized_matmul/quantized_matmul_params.h"

using namespace metal;
using namespace tiny_llm_ext;

constant constexpr int LANES = 32;
constant constexpr int OUTPUTS = 4;  // per simdgroup
constant constexpr int VALUES = 16;  // elements per row, lane and step

constant constexpr int STEP = LANES * VALUES;

// Loads this lane's next elements of `a` into `x`, and returns the sum of the elements. For 4-bit
// weights, those in `x` are then divided by 1, 16, 256 or 4,096, because load_weights does not
// shift the weights; these divisions are exact. Four elements are read with one access.
template <typename T, int BITS>
float load_activations(device const T* a, thread float* x) {
    float sum = 0;
    // [task 4.2.3 activations]
    for (int v = 0; v < VALUES; v += 4) {
        const vec<T, 4> four = *(device const vec<T, 4>*)(a + v);
        for (int i = 0; i < 4; i++) {
            const float value = float(four[i]);
            sum += value;
            x[v + i] = BITS == 4 ? value * (1.0f / float(1 << (i * 4))) : value;
        }
    }
    // [/task 4.2.3 activations]
    return sum;
}

// Loads this lane's next weights as integers. Four 4-bit weights share 16 bits, and each is masked
// but not shifted right: the masked value is too large by the power of two by which
// load_activations divides the corresponding element of a.
template <int BITS>
void load_weights(device const uchar* b, thread float* q) {
    // [task 4.2.3 weights]
    for (int v = 0; v < VALUES; v += BITS == 4 ? 16 : 4) {
        if (BITS == 4) {
            const ushort4 packed = *(device const ushort4*)(b + v / 2);
            for (int i = 0; i < 16; i++) {
                q[v + i] = float(packed[i / 4] & (15u << (i % 4 * 4)));
            }
        } else {
            const uchar4 four = *(device const uchar4*)(b + v);
            for (int i = 0; i < 4; i++) {
                q[v + i] = float(four[i]);
            }
        }
    }
    // [/task 4.2.3 weights]
}

template <typename T, int BITS, int GROUP_SIZE, int ROWS>
[[kernel]] void quantized_matmul_matvec(device const T* scales [[buffer(0)]],  // O × I/GROUP_SIZE
                                        device const T* biases [[buffer(1)]],  // O × I/GROUP_SIZE
                                        device const T* a [[buffer(2)]],       // M × I
                                        device const uint* b [[buffer(3)]],    // O × I·BITS/32
                                        device T* out [[buffer(4)]],           // M × O
                                        constant const QuantizedMatmulParams& params [[buffer(5)]],
                                        uint3 group
                                        [[threadgroup_position_in_grid]],  // x: rows, y: outputs
                                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                                        uint simdgroups [[simdgroups_per_threadgroup]],
                                        uint lane [[thread_index_in_simdgroup]]) {
    const int M = params.M, O = params.O, I = params.I;
    const int row_bytes = I / 8 * BITS, row_groups = I / GROUP_SIZE;
    const int first_output = (group.y * simdgroups + simdgroup) * OUTPUTS;
    const int first_row = group.x * ROWS;
    if (first_output >= O) {
        return;
    }
    // Pointers to this lane's first elements of the first output and row.
    const int first = int(lane) * VALUES;
    device const uchar* weights =
        (device const uchar*)b + long(first_output) * row_bytes + first / 8 * BITS;
    scales += long(first_output) * row_groups + first / GROUP_SIZE;
    biases += long(first_output) * row_groups + first / GROUP_SIZE;
    a += long(first_row) * I + first;
    // Indices past the last output or row repeat the last one, whose result is then not stored
    // again, so the loop has no branches and no out-of-bounds reads.
    int output[OUTPUTS] = {0}, row[ROWS] = {0};
    for (int o = 1; o < OUTPUTS; o++) {
        output[o] = min(o, O - 1 - first_output);
    }
    for (int r = 1; r < ROWS; r++) {
        row[r] = min(r, M - 1 - first_row) * I;
    }

    // [task 4.2.3 outputs]
    float total[OUTPUTS][ROWS];
    for (int o = 0; o < OUTPUTS; o++) {
        for (int r = 0; r < ROWS; r++) {
            total[o][r] = 0;
        }
    }
    for (int i = first; i < I; i += STEP) {
        float x[ROWS][VALUES], sum[ROWS];
        for (int r = 0; r < ROWS; r++) {
            sum[r] = load_activations<T, BITS>(a + row[r], x[r]);
        }
        for (int o = 0; o < OUTPUTS; o++) {
            float q[VALUES];
            load_weights<BITS>(weights + output[o] * row_bytes, q);
            const float scale = scales[output[o] * row_groups];
            const float bias = biases[output[o] * row_groups];
            for (int r = 0; r < ROWS; r++) {
                float products = 0;
                for (int v = 0; v < VALUES; v++) {
                    products = fma(q[v], x[r][v], products);
                }
                total[o][r] = fma(scale, products, fma(bias, sum[r], total[o][r]));
            }
        }
        a += STEP;
        weights += STEP / 8 * BITS;
        scales += STEP / GROUP_SIZE;
        biases += STEP / GROUP_SIZE;
    }
    for (int r = 0; r < ROWS; r++) {
        for (int o = 0; o < OUTPUTS; o++) {
            const float result = simd_sum(total[o][r]);
            if (lane == 0 && first_row + r < M && first_output + o < O) {
                out[long(first_row + r) * O + first_output + o] = T(result);
            }
        }
    }
    // [/task 4.2.3 outputs]
}

#define INSTANTIATE(name, T, BITS, GROUP_SIZE, ROWS)                                      \
    template [[host_name("quantized_matmul_matvec" #ROWS "_" name "_b" #BITS              \
                         "_g" #GROUP_SIZE)]] [[kernel]] void                              \
    quantized_matmul_matvec<T, BITS, GROUP_SIZE, ROWS>(                                   \
        device const T*, device const T*, device const T*, device const uint*, device T*, \
        constant const QuantizedMatmulParams&, uint3, uint, uint, uint);

#define INSTANTIATE_FORMATS(name, T, ROWS) \
    INSTANTIATE(name, T, 4, 32, ROWS)      \
    INSTANTIATE(name, T, 4, 64, ROWS)      \
    INSTANTIATE(name, T, 4, 128, ROWS)     \
    INSTANTIATE(name, T, 8, 32, ROWS)      \
    INSTANTIATE(name, T, 8, 64, ROWS)      \
    INSTANTIATE(name, T, 8, 128, ROWS)

#define INSTANTIATE_ROWS(name, T)   \
    INSTANTIATE_FORMATS(name, T, 1) \
    INSTANTIATE_FORMATS(name, T, 2) \
    INSTANTIATE_FORMATS(name, T, 4)

INSTANTIATE_ROWS("bfloat16", bfloat)
INSTANTIATE_ROWS("float16", half)
