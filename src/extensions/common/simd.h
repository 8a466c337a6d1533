// Vectors of float32, as wide as the instruction set that this file is compiled for.
//
// A kernel is written once against these names and compiled once for each instruction set, with
// TINY_LLM_ISA naming the namespace (see CMakeLists.txt). Arithmetic is that of GCC's and Clang's
// vector extension: a + b, a * b, a < b ? x : y work on whole vectors. Only what it cannot say is
// spelled out for each set below.
//
// The compiler must not fuse a * b + c by itself (-ffp-contract=off): the same sum has to round the
// same way in every function that computes it. Where a fused multiply-add is wanted, fma says so.
#pragma once

#include <stdint.h>
#include <string.h>

#include "common/half.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef TINY_LLM_ISA
#error "a file with vectors is compiled once for each instruction set: see CMakeLists.txt"
#endif

namespace tiny_llm_ext::TINY_LLM_ISA {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));

namespace {

// Subtracting zero changes no number, −0 and NaN included, and no compiler does it.
inline Floats splat(float x) { return x - Floats{}; }
inline Ints splat(int32_t x) { return x - Ints{}; }

/// 0, 1, … in the lanes.
inline Ints lane_numbers() {
    Ints numbers;
    for (int i = 0; i < LANES; i++) {
        numbers[i] = i;
    }
    return numbers;
}

inline Floats as_floats(Ints x) { return (Floats)x; }
inline Ints as_ints(Floats x) { return (Ints)x; }

/// a · b + c, rounded once.
inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#endif
}

// Whether pairs of bfloat16 numbers are better multiplied by the instruction for them than as
// float32. Processors with AMX have it, too, but slow: on the Xeon that was measured, a kernel made
// of it took 1.6 times as long as on Zen 4 (benchmark/LOG.md).
#if defined(__AVX512BF16__) && !defined(__AMX_TILE__)
constexpr bool MULTIPLIES_PAIRS = true;
#else
constexpr bool MULTIPLIES_PAIRS = false;
#endif

/// c + a₁·b₁ + a₀·b₀, where each lane of a and b is a pair of bfloat16 numbers, the first in the
/// lower half. Products are exact, sums rounded one after the other; where it is one instruction,
/// subnormal numbers count as 0.
inline Floats fma(Ints a, Ints b, Floats c) {
#if defined(__AVX512BF16__)
    return (Floats)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#else
    const int32_t upper = static_cast<int32_t>(0xffff0000);
    c = fma(as_floats(a & upper), as_floats(b & upper), c);
    return fma(as_floats(a << 16), as_floats(b << 16), c);
#endif
}

/// The larger of each lane; b where either is NaN.
inline Floats max(Floats a, Floats b) { return a > b ? a : b; }

/// Loads x once. GCC would rather read memory again for every use of it.
template <typename Vector>
inline void keep_in_register(Vector& x) {
#if defined(__AVX512F__)
    asm("" : "+v"(x));
#elif defined(__AVX2__)
    asm("" : "+x"(x));
#elif defined(__aarch64__)
    asm("" : "+w"(x));
#endif
}

// --- memory -------------------------------------------------------------------------------------

template <typename Vector>
inline Vector load_bits(const void* from) {
    Vector x;
    memcpy(&x, from, sizeof x);
    return x;
}

template <typename Vector>
inline Vector load_bits(const void* from, int count, int bytes) {
    Vector x = {};
    memcpy(&x, from, static_cast<size_t>(count) * bytes);
    return x;
}

inline Floats widen_float16(Halves x) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps((__m256i)x);
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtph_ps((__m128i)x);
#elif defined(__aarch64__)
    return (Floats)vcvt_f32_f16((float16x4_t)x);
#endif
}

inline Floats widen_bfloat16(Halves x) {
#if defined(__AVX512F__)
    return as_floats((Ints)_mm512_cvtepu16_epi32((__m256i)x) << 16);
#elif defined(__AVX2__)
    return as_floats((Ints)_mm256_cvtepu16_epi32((__m128i)x) << 16);
#elif defined(__aarch64__)
    return (Floats)vshll_n_u16((uint16x4_t)x, 16);
#endif
}

inline Halves narrow_float16(Floats x) {
#if defined(__AVX512F__)
    return (Halves)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
    return (Halves)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
    return (Halves)vcvt_f16_f32((float32x4_t)x);
#endif
}

/// The bfloat16 number in the upper half of each lane: rounded to nearest, ties to even; NaN stays
/// NaN. AVX-512 has an instruction for it, but that one takes subnormal numbers for zero.
inline Ints bfloat16_bits(Floats x) {
    const Ints bits = as_ints(x);
    const Ints rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return x == x ? rounded : (bits | 0x400000);
}

inline Halves narrow_bfloat16(Floats x) {
    const Ints upper = bfloat16_bits(x) >> 16;
#if defined(__AVX512F__)
    return (Halves)_mm512_cvtepi32_epi16((__m512i)upper);
#elif defined(__AVX2__)
    const __m256i packed = _mm256_packs_epi32((__m256i)upper, (__m256i)upper);  // a b · a b
    return (Halves)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b1000));
#elif defined(__aarch64__)
    return (Halves)vmovn_s32((int32x4_t)upper);
#endif
}

/// x as the format stores it.
inline Floats round_to(Floats x, Format format) {
    switch (format) {
        case Format::float32:
            return x;
        case Format::float16:
            return widen_float16(narrow_float16(x));
        default:
            return as_floats(bfloat16_bits(x) & static_cast<int32_t>(0xffff0000));
    }
}

/// LANES elements from element i of an array.
inline Floats load(const void* array, int64_t i, Format format) {
    switch (format) {
        case Format::float32:
            return load_bits<Floats>(static_cast<const float*>(array) + i);
        case Format::float16:
            return widen_float16(load_bits<Halves>(static_cast<const uint16_t*>(array) + i));
        default:
            return widen_bfloat16(load_bits<Halves>(static_cast<const uint16_t*>(array) + i));
    }
}

/// `count` < LANES elements from element i of an array; zero beyond.
inline Floats load(const void* array, int64_t i, Format format, int count) {
    switch (format) {
        case Format::float32:
            return load_bits<Floats>(static_cast<const float*>(array) + i, count, 4);
        case Format::float16:
            return widen_float16(
                load_bits<Halves>(static_cast<const uint16_t*>(array) + i, count, 2));
        default:
            return widen_bfloat16(
                load_bits<Halves>(static_cast<const uint16_t*>(array) + i, count, 2));
    }
}

/// Stores the first `count` lanes, rounded to the format, from element i of an array.
inline void store(void* array, int64_t i, Format format, Floats x, int count = LANES) {
    if (format == Format::float32) {
        memcpy(static_cast<float*>(array) + i, &x, static_cast<size_t>(count) * 4);
        return;
    }
    const Halves halves = format == Format::float16 ? narrow_float16(x) : narrow_bfloat16(x);
    memcpy(static_cast<uint16_t*>(array) + i, &halves, static_cast<size_t>(count) * 2);
}

// --- across lanes -------------------------------------------------------------------------------

/// The sum of all lanes: halves folded onto each other, an order that depends on LANES alone.
inline float sum(Floats x) {
#if defined(__aarch64__)
    const float32x2_t two = vadd_f32(vget_low_f32((float32x4_t)x), vget_high_f32((float32x4_t)x));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
#else
#if defined(__AVX512F__)
    const __m256 eight =
        _mm256_add_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1));
#else
    const __m256 eight = (__m256)x;
#endif
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#endif
}

/// The largest lane; NaN if there is one is not promised.
inline float max(Floats x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)x);
#elif defined(__aarch64__)
    return vmaxvq_f32((float32x4_t)x);
#else
    float lanes[LANES];
    memcpy(lanes, &x, sizeof lanes);
    float largest = lanes[0];
    for (int i = 1; i < LANES; i++) {
        largest = lanes[i] > largest ? lanes[i] : largest;
    }
    return largest;
#endif
}

/// The sum of all lanes, which must not overflow.
inline int32_t sum(Ints x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)x);
#elif defined(__aarch64__)
    return vaddvq_s32((int32x4_t)x);
#else
    const __m128i four =
        _mm_add_epi32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
#endif
}

/// The largest lane.
inline int32_t max(Ints x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)x);
#elif defined(__aarch64__)
    return vmaxvq_s32((int32x4_t)x);
#else
    const __m128i four =
        _mm_max_epi32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
    const __m128i two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 1)));
#endif
}

// --- functions ----------------------------------------------------------------------------------

/// eˣ for x ≤ 0, to about 2 units in the last place; 0 below −87.3, NaN for NaN.
///
/// x = n·ln 2 + r with |r| ≤ ½ ln 2; eʳ is a polynomial, 2ⁿ an exponent. ln 2 is subtracted in two
/// parts, so that r keeps its precision (Cody and Waite, 1980).
inline Floats exp_of_negative(Floats x) {
    const Floats lowest = splat(-87.33654f);
    const Floats clamped = max(lowest, x);
    const Floats magic = splat(12582912.0f);  // 1.5 · 2²³: adding it rounds to a whole number
    const Floats shifted = fma(clamped, splat(1.44269504f), magic);
    const Floats n = shifted - magic;
    Floats r = fma(n, splat(-0.693359375f), clamped);
    r = fma(n, splat(2.12194440e-4f), r);
    Floats p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r) + 1.0f;
    // n stands in the lowest bits of `shifted`; what is above them is shifted out.
    const Floats two_to_n = as_floats((as_ints(shifted) << 23) + (127 << 23));
    return x < lowest ? Floats{} : p * two_to_n;
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
