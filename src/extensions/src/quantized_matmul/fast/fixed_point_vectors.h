// Integer vector operations of quantized_matmul_avx2_neon.cpp.
#pragma once

#include "common/simd.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

constexpr int SHORTS = 2 * LANES;  // 16-bit lanes per vector
typedef int16_t Shorts __attribute__((vector_size(SHORTS * 2), may_alias));
typedef uint16_t UnsignedShorts __attribute__((vector_size(SHORTS * 2), may_alias));

namespace {

/// Looks up each 16-bit lane, a value of 0 … 15, in a table of 16 bytes.
inline Shorts look_up(const uint8_t (&table)[16], UnsignedShorts x) {
    x |= 0x8000;  // makes the upper byte's result 0
#if defined(__AVX2__)
    const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
    return (Shorts)_mm256_shuffle_epi8(bytes, (__m256i)x);
#elif defined(__aarch64__)
    return (Shorts)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)x);
#endif
}

/// Sums of pairs of products in LANES 32-bit lanes. NEON multiplies to 32-bit lanes without adding
/// neighbors, so it needs two registers, one per half of the 16-bit lanes.
struct PairSums {
#if defined(__AVX2__)
    Ints all;
#elif defined(__aarch64__)
    Ints first, last;
#endif
};

/// Adds weights[2l] · a[2l] + weights[2l + 1] · a[2l + 1], of 16-bit lanes, to 32-bit lane l.
inline void multiply_add(PairSums& sums, Ints a, Shorts weights) {
#if defined(__AVXVNNI__)
    sums.all = (Ints)_mm256_dpwssd_avx_epi32((__m256i)sums.all, (__m256i)a, (__m256i)weights);
#elif defined(__AVX2__)
    sums.all += (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)weights);
    // Without this, GCC reassociates integer sums: it multiplies first, and spills the products.
    keep_in_register(sums.all);
#elif defined(__aarch64__)
    const auto x = (int16x8_t)a, y = (int16x8_t)weights;
    sums.first = (Ints)vmlal_s16((int32x4_t)sums.first, vget_low_s16(x), vget_low_s16(y));
    sums.last = (Ints)vmlal_high_s16((int32x4_t)sums.last, x, y);
#endif
}

inline void add(PairSums& sums, const PairSums& others) {
#if defined(__AVX2__)
    sums.all += others.all;
#elif defined(__aarch64__)
    sums.first += others.first;
    sums.last += others.last;
#endif
}

inline Ints total_of(const PairSums& sums) {
#if defined(__AVX2__)
    return sums.all;
#elif defined(__aarch64__)
    return (Ints)vpaddq_s32((int32x4_t)sums.first, (int32x4_t)sums.last);
#endif
}

/// Interleaves to a₀ b₀ a₁ b₁ …: `first` receives LANES elements, `second` the rest.
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
