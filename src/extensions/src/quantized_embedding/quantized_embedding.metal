// quantized_embedding on the GPU: a thread unpacks one word of a row, 8 or 4 numbers.
// quantized_embedding.h has the contract, quantized_embedding_launch.cpp the grid.
//
// A step looks up one row for each of its tokens, a few kilobytes: there is nothing to gain beyond
// neighbouring threads reading neighbouring words.
#include <metal_stdlib>

#include "src/quantized_embedding/quantized_embedding_params.h"

using namespace metal;
using namespace tiny_llm_ext;

// q · scale + bias is rounded after each step, as the contract says: no fused multiply-add.
#pragma METAL fp contract(off)

// The row of the table that an id means, or −1 if there is none.
static long row_of(uint id, constant const QuantizedEmbeddingParams& params) {
    long row = id;
    if (params.ids_signed) {
        row = int(id);
        row = row < 0 ? row + params.V : row;
    }
    return row >= 0 && row < params.V ? row : -1;
}

// Thread (word, n).
template <typename T, int BITS, int GROUP_SIZE>
[[kernel]] void quantized_embedding_rows(
    device const uint* ids [[buffer(0)]],     // N
    device const T* scales [[buffer(1)]],     // V × E/GROUP_SIZE
    device const T* biases [[buffer(2)]],     // V × E/GROUP_SIZE
    device const uint* weight [[buffer(3)]],  // V × E·BITS/32
    device T* out [[buffer(4)]],              // N × E
    constant const QuantizedEmbeddingParams& params [[buffer(5)]],
    uint2 position [[thread_position_in_grid]]) {
    constexpr int PER_WORD = 32 / BITS;
    const int words = params.E / PER_WORD;
    const int word = position.x;
    const long n = position.y;
    if (word >= words || n >= params.N) {
        return;
    }
    device vec<T, 4>* to = (device vec<T, 4>*)(out + n * params.E + word * PER_WORD);
    const long row = row_of(ids[n], params);
    if (row < 0) {
        for (int v = 0; v < PER_WORD / 4; v++) {
            to[v] = vec<T, 4>(T(NAN));
        }
        return;
    }
    const long group = (row * words + word) / (GROUP_SIZE / PER_WORD);
    const uint packed = weight[row * words + word];
    const T scale = scales[group], bias = biases[group];
    for (int v = 0; v < PER_WORD; v += 4) {
        vec<T, 4> four;
        for (int i = 0; i < 4; i++) {
            const float q = packed >> ((v + i) * BITS) & ((1u << BITS) - 1);
            const T product = T(q * float(scale));
            four[i] = T(float(product) + float(bias));
        }
        to[v / 4] = four;
    }
}

#define INSTANTIATE(name, T, BITS, GROUP_SIZE)                                                    \
    template [[host_name("quantized_embedding_rows_" name "_b" #BITS "_g" #GROUP_SIZE)]]          \
    [[kernel]] void quantized_embedding_rows<T, BITS, GROUP_SIZE>(                                \
        device const uint*, device const T*, device const T*, device const uint*, device T*,      \
        constant const QuantizedEmbeddingParams&, uint2);

#define INSTANTIATE_FORMATS(name, T) \
    INSTANTIATE(name, T, 4, 32)      \
    INSTANTIATE(name, T, 4, 64)      \
    INSTANTIATE(name, T, 4, 128)     \
    INSTANTIATE(name, T, 8, 32)      \
    INSTANTIATE(name, T, 8, 64)      \
    INSTANTIATE(name, T, 8, 128)

INSTANTIATE_FORMATS("float32", float)
INSTANTIATE_FORMATS("float16", half)
INSTANTIATE_FORMATS("bfloat16", bfloat)
