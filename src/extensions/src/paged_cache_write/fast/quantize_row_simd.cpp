// Vectorized quantization of a KV cache row to 8 bits. Results equal the reference's bit for bit.
#include "common/int8_rows.h"
#include "common/simd.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

inline Floats load_some(const void* x, int64_t d, int64_t D, Format format) {
    const int64_t left = D - d;
    return left < LANES ? load(x, d, format, static_cast<int>(left)) : load(x, d, format);
}

template <Format FORMAT>
void quantize(const void* x, int64_t D, void* row) {
    constexpr int32_t INFINITE = 0x7f800000, SMALLEST_NORMAL = 0x00800000;
    Ints magnitudes = {};  // bits of |x|, ordered like the values; NaN is the largest
    for (int64_t d = 0; d < D; d += LANES) {
        const Ints magnitude = as_ints(load_some(x, d, D, FORMAT)) & 0x7fffffff;
        magnitudes = magnitude > magnitudes ? magnitude : magnitudes;
    }
    const int32_t largest = max(magnitudes);
    const bool is_finite = largest < INFINITE;
    float scale = is_finite ? bits_to_float(largest) / 127 : __builtin_nanf("");
    scale = scale < bits_to_float(SMALLEST_NORMAL) ? 0 : scale;
    const Floats inverse = splat(scale > 0 ? 1 / scale : 0);
    const Floats magic = splat(12582912.0f);  // 1.5 · 2²³: adding it rounds to an integer
    for (int64_t d = 0; d < D; d += LANES) {
        const Floats integers = load_some(x, d, D, FORMAT) * inverse + magic;
        const Bytes bytes = __builtin_convertvector(as_ints(integers), Bytes);  // lowest 8 bits
        memcpy(static_cast<char*>(row) + d, &bytes, D - d < LANES ? D - d : LANES);
    }
    if (!is_finite) {
        memset(row, 0, D);
    }
    memcpy(static_cast<char*>(row) + D, &scale, sizeof scale);
}

}  // namespace

void quantize_row(const void* x, Format format, int64_t D, void* row) {
    switch (format) {
        case Format::float32:
            return quantize<Format::float32>(x, D, row);
        case Format::float16:
            return quantize<Format::float16>(x, D, row);
        default:
            return quantize<Format::bfloat16>(x, D, row);
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
