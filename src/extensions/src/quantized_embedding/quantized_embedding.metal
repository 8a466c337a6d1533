// quantized_embedding on the GPU: one thread dequantizes one uint32 of weights. Contract:
// quantized_embedding.h.
#include <metal_stdlib>

#include "src/quantized_embedding/quantized_embedding_params.h"

using namespace metal;
using namespace tiny_llm_ext;

// The product and the sum of q · scale + bias are both rounded, so the compiler must not fuse them
// to an FMA, even in float32.
#pragma METAL fp contract(off)

// Table row of an id: a negative id counts from the end. −1 if out of range.
inline long row_of(uint id, constant const QuantizedEmbeddingParams& params) {
    long row = id;
    if (params.ids_are_signed) {
        row = int(id) < 0 ? long(int(id)) + params.V : long(id);
    }
    return row >= 0 && row < params.V ? row : -1;
}

template <typename T>
[[kernel]] void quantized_embedding_words(
    device const uint* ids [[buffer(0)]], device const T* scales [[buffer(1)]],
    device const T* biases [[buffer(2)]], device const uint* weight [[buffer(3)]],
    device T* out [[buffer(4)]], constant const QuantizedEmbeddingParams& params [[buffer(5)]],
    uint2 position [[thread_position_in_grid]]) {
    const int w = int(position.x), count = 32 / params.bits;
    const long n = position.y;
    if (w >= params.words) {
        return;
    }
    device T* word_out = out + (n * params.words + w) * count;
    const long row = row_of(ids[n], params);
    if (row < 0) {
        for (int i = 0; i < count; i++) {
            word_out[i] = T(NAN);
        }
        return;
    }
    const long group = row * (params.words / params.words_per_group) + w / params.words_per_group;
    const float scale = float(scales[group]), bias = float(biases[group]);
    const uint word = weight[row * params.words + w], mask = (1u << params.bits) - 1;
    for (int i = 0; i < count; i++) {
        const float q = float(word >> (i * params.bits) & mask);
        word_out[i] = T(float(T(q * scale)) + bias);
    }
}

#define INSTANTIATE(name, T)                                                           \
    template [[host_name("quantized_embedding_words_" #name)]] [[kernel]] void         \
    quantized_embedding_words<T>(device const uint*, device const T*, device const T*, \
                                 device const uint*, device T*,                        \
                                 constant const QuantizedEmbeddingParams&, uint2);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
