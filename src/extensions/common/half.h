// 16-bit floating formats, without MLX headers.
//
// Avoids standard library templates: the linker may keep the copy of an inline function from a file
// compiled for a newer instruction set, and the module would hit illegal instructions on older
// CPUs. These conversions serve reference kernels and scalars; common/simd.h converts vectors.
#pragma once

#include <stdint.h>
#include <string.h>

namespace tiny_llm_ext {

/// Storage format of an array's elements. int8: rows of a quantized KV cache only
/// (common/int8_rows.h).
enum class Format { float32, float16, bfloat16, int8 };

namespace {  // internal linkage: the linker must not merge copies from different files

[[maybe_unused]] inline float bits_to_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

[[maybe_unused]] inline uint32_t float_to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

[[maybe_unused]] inline float bfloat16_to_float(uint16_t x) {
    return bits_to_float(static_cast<uint32_t>(x) << 16);
}

/// Rounds to nearest, ties to even; NaN stays NaN.
[[maybe_unused]] inline uint16_t float_to_bfloat16(float x) {
    const uint32_t bits = float_to_bits(x);
    if (x != x) {
        return static_cast<uint16_t>(bits >> 16 | 0x40);
    }
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

[[maybe_unused]] inline float float16_to_float(uint16_t x) {
    const uint32_t sign = (x & 0x8000u) << 16;
    const uint32_t exponent = x >> 10 & 0x1f, mantissa = x & 0x3ffu;
    if (exponent == 0) {  // zero or subnormal: mantissa · 2⁻²⁴
        const float value = static_cast<float>(mantissa) * 0x1p-24f;
        return sign ? -value : value;
    }
    const uint32_t widened = exponent == 31 ? 255 : exponent + 112;
    return bits_to_float(sign | widened << 23 | mantissa << 13);
}

/// Rounds to nearest, ties to even; overflows to infinity; NaN stays NaN.
[[maybe_unused]] inline uint16_t float_to_float16(float x) {
    const uint32_t bits = float_to_bits(x);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {
        return sign | 0x7e00;
    }
    if (magnitude >= 0x477ff000) {  // ≥ 65520 = maximum + ½ ulp: rounds to infinity
        return sign | 0x7c00;
    }
    if (magnitude < 0x38800000) {  // subnormal: adding 0.5 rounds to a multiple of 2⁻²⁴
        return sign | static_cast<uint16_t>(float_to_bits(bits_to_float(magnitude) + 0.5f) -
                                            float_to_bits(0.5f));
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return sign | static_cast<uint16_t>((rounded - (112u << 23)) >> 13);
}

/// Element i of an array of the given format, as float32.
[[maybe_unused]] inline float load_element(const void* array, int64_t i, Format format) {
    switch (format) {
        case Format::float32:
            return static_cast<const float*>(array)[i];
        case Format::float16:
            return float16_to_float(static_cast<const uint16_t*>(array)[i]);
        case Format::int8:
            return static_cast<const int8_t*>(array)[i];
        default:
            return bfloat16_to_float(static_cast<const uint16_t*>(array)[i]);
    }
}

/// Rounds x to the format and stores it as element i.
[[maybe_unused]] inline void store_element(void* array, int64_t i, Format format, float x) {
    switch (format) {
        case Format::float32:
            static_cast<float*>(array)[i] = x;
            break;
        case Format::float16:
            static_cast<uint16_t*>(array)[i] = float_to_float16(x);
            break;
        default:
            static_cast<uint16_t*>(array)[i] = float_to_bfloat16(x);
    }
}

/// x rounded to the format.
[[maybe_unused]] inline float round_to(float x, Format format) {
    switch (format) {
        case Format::float32:
            return x;
        case Format::float16:
            return float16_to_float(float_to_float16(x));
        default:
            return bfloat16_to_float(float_to_bfloat16(x));
    }
}

}  // namespace

}  // namespace tiny_llm_ext
