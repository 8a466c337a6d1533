// Integer vector operations of quantized_matmul_avx2_neon.cpp.
#pragma once

#include "common/simd.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

constexpr int SHORTS = 2 * LANES;  // 16-bit lanes per vector
typedef int16_t Shorts __attribute__((vector_size(SHORTS * 2), may_alias));

namespace {

/// Widens SHORTS bytes to 16-bit lanes. (GCC 12 emits four instructions for
/// __builtin_convertvector.)
inline Shorts load_bytes(const uint8_t* from) {
#if defined(__AVX2__)
    return (Shorts)_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)from));
#elif defined(__aarch64__)
    return (Shorts)vmovl_u8(vld1_u8(from));
#endif
}

/// Looks up the values 0 … 15 in x in a table of 16 signed bytes.
inline Shorts look_up(const int8_t (&table)[16], Shorts x) {
#if defined(__AVX2__)
    const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
    const __m256i high = _mm256_slli_epi16((__m256i)x, 8);  // low bytes are zero
    return (Shorts)_mm256_srai_epi16(_mm256_shuffle_epi8(bytes, high), 8);
#elif defined(__aarch64__)
    const int8x16_t high = vreinterpretq_s8_s16(vshlq_n_s16((int16x8_t)x, 8));
    const int8x16_t found = vqtbl1q_s8(vld1q_s8(table), vreinterpretq_u8_s8(high));
    return (Shorts)vshrq_n_s16(vreinterpretq_s16_s8(found), 8);
#endif
}

/// sums + a · b, adding the products of two 16-bit lanes per 32-bit lane. The pairing of lanes
/// depends on the instruction set.
inline Ints multiply_add(Ints sums, Shorts a, Shorts b) {
#if defined(__AVX2__)
    return sums + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__aarch64__)
    const int32x4_t low = vmlal_s16((int32x4_t)sums, vget_low_s16((int16x8_t)a),  //
                                    vget_low_s16((int16x8_t)b));
    return (Ints)vmlal_high_s16(low, (int16x8_t)a, (int16x8_t)b);
#endif
}

/// Lane o of the result is the sum of all lanes of x[o].
inline Ints sum_each(const Ints (&x)[LANES]) {
#if defined(__AVX2__)
    auto pairs = [&](int i) __attribute__((always_inline)) {
        return _mm256_hadd_epi32((__m256i)x[i], (__m256i)x[i + 1]);
    };
    const __m256i low = _mm256_hadd_epi32(pairs(0), pairs(2));
    const __m256i high = _mm256_hadd_epi32(pairs(4), pairs(6));
    return (Ints)_mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                                  _mm256_permute2x128_si256(low, high, 0x31));
#elif defined(__aarch64__)
    return (Ints)vpaddq_s32(vpaddq_s32((int32x4_t)x[0], (int32x4_t)x[1]),
                            vpaddq_s32((int32x4_t)x[2], (int32x4_t)x[3]));
#endif
}

/// Interleaves: a₀ b₀ a₁ b₁ …; first LANES elements, then the rest.
inline void zip_lanes(Halves a, Halves b, Halves& first, Halves& second) {
#if defined(__AVX2__)
    first = (Halves)_mm_unpacklo_epi16((__m128i)a, (__m128i)b);
    second = (Halves)_mm_unpackhi_epi16((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
    first = (Halves)vzip1_u16((uint16x4_t)a, (uint16x4_t)b);
    second = (Halves)vzip2_u16((uint16x4_t)a, (uint16x4_t)b);
#endif
}

/// Transposes LANES×LANES elements: interleaves the upper with the lower half, log₂ LANES times.
inline void transpose(Halves (&x)[LANES]) {
#pragma GCC unroll 3
    for (int size = 1; size < LANES; size *= 2) {
        Halves y[LANES];
#pragma GCC unroll 4
        for (int i = 0; i < LANES / 2; i++) {
            zip_lanes(x[i], x[i + LANES / 2], y[2 * i], y[2 * i + 1]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < LANES; i++) {
            x[i] = y[i];
        }
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
