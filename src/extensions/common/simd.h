// float32 vectors of the native width of the target instruction set.
//
// A kernel is written once against this interface and compiled once per instruction set, with
// TINY_LLM_ISA naming the namespace (see kernels.cmake). Arithmetic uses GCC's and Clang's vector
// extension: a + b, a * b, a < b ? x : y operate on vectors. Only operations that the extension
// lacks are written per instruction set below.
//
// -ffp-contract=off keeps the compiler from fusing a * b + c: a sum must round identically in every
// function that computes it. Use fma for an explicit fused multiply-add.
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
#error "TINY_LLM_ISA is undefined; kernels.cmake sets it to compile SIMD files per instruction set"
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
typedef int8_t Bytes __attribute__((vector_size(LANES)));

namespace {

// Broadcasts x to all lanes. Zero is subtracted, not added, because −0 + 0 would be +0.
inline Floats splat(float x) { return x - Floats{}; }
inline Ints splat(int32_t x) { return x - Ints{}; }

/// Lane indices: 0, 1, …
inline Ints lane_indices() {
    Ints indices;
    for (int i = 0; i < LANES; i++) {
        indices[i] = i;
    }
    return indices;
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

// Whether there is a bfloat16 dot-product instruction.
#if defined(__AVX512BF16__)
constexpr bool USES_BF16_DOT = true;
#else
constexpr bool USES_BF16_DOT = false;
#endif

/// c + a₁·b₁ + a₀·b₀, where each lane of a and b is a pair of bfloat16 values, a₀ and b₀ in the
/// lower half. Products are exact; the two sums are rounded in sequence. The AVX-512 instruction
/// treats subnormals as 0.
inline Floats fma(Ints a, Ints b, Floats c) {
#if defined(__AVX512BF16__)
    return (Floats)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#else
    const int32_t upper = static_cast<int32_t>(0xffff0000);
    c = fma(as_floats(a & upper), as_floats(b & upper), c);
    return fma(as_floats(a << 16), as_floats(b << 16), c);
#endif
}

/// Lane-wise maximum; b where either is NaN.
inline Floats max(Floats a, Floats b) { return a > b ? a : b; }

/// Makes the compiler keep x in a register. Otherwise, GCC reloads it from memory for every use.
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

inline Floats widen_int8(Bytes x) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)x));
#elif defined(__AVX2__)
    const __m128i bytes = _mm_cvtsi64_si128((int64_t)x);
    return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
#else
    return __builtin_convertvector(x, Floats);
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

/// bfloat16 value in the upper half of each lane: rounded to nearest, ties to even; NaN stays NaN.
/// The AVX-512 instruction is not used because it flushes subnormals to zero.
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
    const __m256i packed = _mm256_packs_epi32((__m256i)upper, (__m256i)upper);  // a a b b
    return (Halves)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b1000));
#elif defined(__aarch64__)
    return (Halves)vmovn_s32((int32x4_t)upper);
#endif
}

/// x rounded to the format.
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

/// Loads LANES elements starting at element i of an array.
inline Floats load(const void* array, int64_t i, Format format) {
    switch (format) {
        case Format::float32:
            return load_bits<Floats>(static_cast<const float*>(array) + i);
        case Format::float16:
            return widen_float16(load_bits<Halves>(static_cast<const uint16_t*>(array) + i));
        case Format::int8:
            return widen_int8(load_bits<Bytes>(static_cast<const int8_t*>(array) + i));
        default:
            return widen_bfloat16(load_bits<Halves>(static_cast<const uint16_t*>(array) + i));
    }
}

/// Loads `count` < LANES elements starting at element i of an array; the other lanes are zero.
inline Floats load(const void* array, int64_t i, Format format, int count) {
    switch (format) {
        case Format::float32:
            return load_bits<Floats>(static_cast<const float*>(array) + i, count, 4);
        case Format::float16:
            return widen_float16(
                load_bits<Halves>(static_cast<const uint16_t*>(array) + i, count, 2));
        case Format::int8:
            return widen_int8(load_bits<Bytes>(static_cast<const int8_t*>(array) + i, count, 1));
        default:
            return widen_bfloat16(
                load_bits<Halves>(static_cast<const uint16_t*>(array) + i, count, 2));
    }
}

/// Rounds the first `count` lanes to the format and stores them starting at element i.
inline void store(void* array, int64_t i, Format format, Floats x, int count = LANES) {
    if (format == Format::float32) {
        memcpy(static_cast<float*>(array) + i, &x, static_cast<size_t>(count) * 4);
        return;
    }
    const Halves halves = format == Format::float16 ? narrow_float16(x) : narrow_bfloat16(x);
    memcpy(static_cast<uint16_t*>(array) + i, &halves, static_cast<size_t>(count) * 2);
}

/// Whether rows of vectors at `to`, `row_size` floats apart, can be stored with `stream`.
inline bool can_stream(const float* to, int64_t row_size) {
    return reinterpret_cast<uintptr_t>(to) % sizeof(Floats) == 0 && row_size % LANES == 0;
}

/// Stores a vector that is not read soon. On x86, the store bypasses the cache, so that the cache
/// line is not read from memory first. Other threads see the vector after `end_streams`.
inline void stream(float* to, Floats x) {
#if defined(__AVX512F__)
    _mm512_stream_ps(to, (__m512)x);
#elif defined(__AVX2__)
    _mm256_stream_ps(to, (__m256)x);
#else
    store(to, 0, Format::float32, x);
#endif
}

inline void end_streams() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

/// Loads `count` ≤ LANES elements starting at element i of an array; the other lanes are zero.
inline Floats load_up_to(const void* array, int64_t i, Format format, int count) {
    return count == LANES ? load(array, i, format) : load(array, i, format, count);
}

/// Calls body(i, count) for the vectors that cover 0 … n − 1; only the last count may be below
/// LANES.
template <typename Body>
inline void for_vectors(int64_t n, const Body& body) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        body(i, LANES);
    }
    if (i < n) {
        body(i, static_cast<int>(n - i));
    }
}

// --- across lanes -------------------------------------------------------------------------------

/// Sum of all lanes. Halves are added repeatedly, so the order depends only on LANES.
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

/// Maximum over all lanes. NaN lanes may be ignored.
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

/// Sum of all lanes, which must not overflow.
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

/// Maximum over all lanes.
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

/// eˣ for x ≤ 0, with an error of about 2 ulps; 0 below −87.3, NaN for NaN.
///
/// x = n·ln 2 + r with |r| ≤ ½ ln 2, so eˣ = 2ⁿ·eʳ: a polynomial approximates eʳ, and n becomes the
/// exponent bits. n·ln 2 is subtracted in two steps, so that r keeps its precision (Cody and Waite,
/// 1980).
inline Floats exp_of_negative(Floats x) {
    const Floats lowest = splat(-87.33654f);
    const Floats clamped = max(lowest, x);
    const Floats magic = splat(12582912.0f);  // 1.5 · 2²³: adding it rounds to an integer
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
    // n is in the lowest bits of `shifted`; the shift discards the others.
    const Floats two_to_n = as_floats((as_ints(shifted) << 23) + (127 << 23));
    return x < lowest ? Floats{} : p * two_to_n;
}

/// 1 / (1 + e⁻ˣ), with an error of about 3 ulps. Computed from e⁻|x|, which is at most 1, to avoid
/// overflow and cancellation.
inline Floats sigmoid(Floats x) {
    const Ints sign = Ints{} + INT32_MIN;
    const Floats power = exp_of_negative(as_floats(as_ints(x) | sign));
    return (x < 0.0f ? power : splat(1.0f)) / (1.0f + power);
}

/// x · sigmoid(x).
inline Floats silu(Floats x) { return x * sigmoid(x); }

/// GELU with a tanh, as x · sigmoid(2u): ½·x·(1 + tanh u) for u = √(2/π)·(x + 0.044715·x³).
inline Floats gelu_tanh(Floats x) { return x * sigmoid(1.5957691f * (x + 0.044715f * x * x * x)); }

/// Sum of squares of n floats, in an order that depends only on n and LANES.
///
/// Four accumulators hide the addition latency of four cycles.
inline float sum_of_squares(const float* x, int64_t n) {
    Floats sums[4] = {};
    for_vectors(n, [&](int64_t i, int count) {
        const Floats v = load_up_to(x, i, Format::float32, count);
        sums[i / LANES % 4] = fma(v, v, sums[i / LANES % 4]);
    });
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
