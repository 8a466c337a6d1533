// Integer vector operations of quantized_matmul_fixed_point_simd.cpp.
#pragma once

#include "common/simd.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool USES_VNNI = true;
#else
constexpr bool USES_VNNI = false;
#if defined(__AVX2__)
#define TINY_LLM_SUMS_IN_SHORTS  // two products of bytes are added in a 16-bit lane
#endif
#endif

constexpr int SHORTS = 2 * LANES;  // 16-bit lanes per vector
typedef int16_t Shorts __attribute__((vector_size(SHORTS * 2), may_alias));
typedef uint16_t UnsignedShorts __attribute__((vector_size(SHORTS * 2), may_alias));
typedef uint8_t Quads __attribute__((vector_size(4 * LANES), may_alias));  // four bytes per output

namespace {

/// Looks up each byte, a value of 0 … 15, in a table of 16 bytes.
inline Quads look_up(const uint8_t (&table)[16], Quads x) {
#if defined(__AVX512F__)
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table));
    return (Quads)_mm512_shuffle_epi8(bytes, (__m512i)x);
#elif defined(__AVX2__)
    const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
    return (Quads)_mm256_shuffle_epi8(bytes, (__m256i)x);
#elif defined(__aarch64__)
    return (Quads)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)x);
#endif
}

/// Looks up each 16-bit lane, a value of 0 … 15, in a table of 16 bytes.
inline Shorts look_up(const uint8_t (&table)[16], UnsignedShorts x) {
    return (Shorts)look_up(table, (Quads)(x | 0x8000));  // makes the upper byte's result 0
}

/// Sums of pairs of products in LANES 32-bit lanes. NEON multiplies to 32-bit lanes without adding
/// neighbors, so it needs two registers, one per half of the 16-bit lanes.
struct PairSums {
    // Chains of additions into which each sum of a single row is split, to hide the latency of the
    // instruction in the chain: one that multiplies and adds, or with plain AVX2 only an addition.
    // n rows: CHAINS / n.
#if defined(__AVX2__)
    static constexpr int CHAINS = USES_VNNI ? 4 : 2;
    Ints all;
#elif defined(__aarch64__)
    static constexpr int CHAINS = 4;
    Ints first, last;
#endif
};

/// Adds weights[2l] · a[2l] + weights[2l + 1] · a[2l + 1], of 16-bit lanes, to 32-bit lane l.
inline void multiply_add(PairSums& sums, Ints a, Shorts weights) {
#if defined(__AVX512VNNI__)
    sums.all = (Ints)_mm512_dpwssd_epi32((__m512i)sums.all, (__m512i)a, (__m512i)weights);
#elif defined(__AVXVNNI__)
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

/// Sums of four products of bytes in LANES 32-bit lanes.
struct QuadSums {
    Ints all;
#if defined(TINY_LLM_SUMS_IN_SHORTS)
    static constexpr int CHAINS = 1;  // each would need its own end_step
    Shorts step;                      // sums of the current step, two lanes per output
#else
    static constexpr int CHAINS = LANES == 16 ? 2 : 4;
#endif
};

inline void add(QuadSums& sums, const QuadSums& others) { sums.all += others.all; }

#if defined(__AVX2__)
/// Adds Σ weights[4l + k] · a[4l + k], k = 0 … 3, of unsigned and signed bytes, to 32-bit lane l.
/// Without VNNI, end_step() must follow after at most 32767 / (2 · 127 · largest weight) calls.
inline void multiply_add(QuadSums& sums, Ints a, Quads weights) {
#if defined(__AVX512VNNI__)
    sums.all = (Ints)_mm512_dpbusd_epi32((__m512i)sums.all, (__m512i)weights, (__m512i)a);
#elif defined(__AVXVNNI__)
    sums.all = (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums.all, (__m256i)weights, (__m256i)a);
#else
    sums.step += (Shorts)_mm256_maddubs_epi16((__m256i)weights, (__m256i)a);
    keep_in_register(sums.step);
#endif
}
#endif

/// Ends a step: adds its 16-bit sums to the 32-bit sums, if multiply_add sums in 16 bits.
template <typename Sums>
inline void end_step(Sums&) {}
#if defined(TINY_LLM_SUMS_IN_SHORTS)
inline void end_step(QuadSums& sums) {
    sums.all += (Ints)_mm256_madd_epi16((__m256i)sums.step, _mm256_set1_epi16(1));
    sums.step = Shorts{};
}
#endif

inline Ints total_of(const QuadSums& sums) { return sums.all; }

/// Sums of products with 16-bit activations, 256 · high + low.
struct HighLowSums {
    static constexpr int CHAINS = LANES == 16 ? 1 : 2;
    QuadSums high, low;
};
inline void add(HighLowSums& sums, const HighLowSums& others) {
    add(sums.high, others.high);
    add(sums.low, others.low);
}
inline Ints total_of(const HighLowSums& sums) { return sums.high.all * 256 + sums.low.all; }

/// Loads the activations to multiply with one part of the weights: a word, broadcast to all lanes.
template <typename Sums>
struct PartActivations {
    static constexpr int WORDS = 1;
    static Ints load(const int32_t* words) { return splat(*words); }
};

#if defined(__AVX2__)
/// Words of high and low bytes.
struct HighLowWords {
    Ints high, low;
};
template <>
struct PartActivations<HighLowSums> {
    static constexpr int WORDS = 2;
    static HighLowWords load(const int32_t* words) { return {splat(words[0]), splat(words[1])}; }
};
inline void multiply_add(HighLowSums& sums, const HighLowWords& a, Quads weights) {
    multiply_add(sums.high, a.high, weights);
    multiply_add(sums.low, a.low, weights);
}
#endif

#if defined(__ARM_FEATURE_DOTPROD)
/// One word of 4-bit weights per output, unpacked to bytes, which sdot takes as signed: less than
/// 128.
struct Nibbles {
    Quads even, odd;
};

/// Adds four products of bytes to each 32-bit lane: those of the weights of the lane and the
/// activations in word WORD of a.
template <int WORD>
inline void dot(QuadSums& sums, int32x4_t a, Quads weights) {
    sums.all = (Ints)vdotq_laneq_s32((int32x4_t)sums.all, (int8x16_t)weights, (int8x16_t)a, WORD);
}

/// 8-bit activations: a word for the even weights, a word for the odd ones.
template <>
struct PartActivations<QuadSums> {
    static constexpr int WORDS = 2;
    static int32x4_t load(const int32_t* words) {
        return vcombine_s32(vld1_s32(words), vdup_n_s32(0));
    }
};
inline void multiply_add(QuadSums& sums, int32x4_t a, const Nibbles& weights) {
    dot<0>(sums, a, weights.even);
    dot<1>(sums, a, weights.odd);
}

/// Words of high and low bytes for the even weights, then for the odd ones.
template <>
struct PartActivations<HighLowSums> {
    static constexpr int WORDS = 4;
    static int32x4_t load(const int32_t* words) { return vld1q_s32(words); }
};
inline void multiply_add(HighLowSums& sums, int32x4_t a, const Nibbles& weights) {
    dot<0>(sums.high, a, weights.even);
    dot<1>(sums.low, a, weights.even);
    dot<2>(sums.high, a, weights.odd);
    dot<3>(sums.low, a, weights.odd);
}
#endif

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
