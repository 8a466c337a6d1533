// AVX-512 helpers: 16-bit formats and in-register transposition.
//
// Include only in files compiled for AVX-512. Avoids standard library templates; common/half.h
// explains why.
#pragma once

#include <immintrin.h>

#include "common/half.h"

namespace tiny_llm_ext {

namespace {

// Widens 16 float16 or bfloat16 elements to float32.
inline __m512 widen(__m256i x, Format format) {
    return format == Format::float16
               ? _mm512_cvtph_ps(x)
               : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

// Loads 16 consecutive 16-bit elements as float32.
inline __m512 load_halves(const uint16_t* in, Format format) {
    return widen(_mm256_loadu_si256((const __m256i*)in), format);
}

// Rounds the first `count` lanes to the format and stores them; count ≥ 16 stores all 16.
inline void store_halves(uint16_t* out, __m512 x, int64_t count, Format format) {
    const __m256i halves = format == Format::float16
                               ? _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                               : (__m256i)_mm512_cvtneps_pbh(x);
    if (count >= 16) {
        _mm256_storeu_si256((__m256i*)out, halves);
    } else {
        _mm256_mask_storeu_epi16(out, static_cast<__mmask16>((1u << count) - 1), halves);
    }
}

// Transposes 16×16 32-bit elements, whose rows are `stride` elements apart: lane r of out[c] is
// element c of row r. Rows ≥ `rows` and columns ≥ `columns` are zero.
inline void transpose_words(const uint32_t* in, int64_t stride, int rows, int columns,
                            __m512i* out) {
    const __mmask16 mask = static_cast<__mmask16>((1u << columns) - 1);
    __m512i r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        r[i] = i < rows ? _mm512_maskz_loadu_epi32(mask, in + i * stride) : _mm512_setzero_si512();
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        out[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        out[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
        out[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
        out[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

// Transposes 16 rows of four pairs of 16-bit elements: lane r of out[p] holds pair p of row r. Rows
// ≥ `rows` and elements ≥ `columns` are zero.
inline void transpose_pairs(const uint16_t* in, int64_t stride, int rows, int64_t columns,
                            __m512i (&out)[4]) {
    const __mmask8 mask = static_cast<__mmask8>(columns >= 8 ? 0xff : (1u << columns) - 1);
    const auto row = [&](int r) __attribute__((always_inline)) {
        return r < rows ? _mm_maskz_loadu_epi16(mask, in + r * stride) : _mm_setzero_si128();
    };
    __m512i x[4];  // x[r] holds rows r, r + 4, r + 8 and r + 12
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        x[r] = _mm512_inserti32x4(_mm512_castsi128_si512(row(r)), row(r + 4), 1);
        x[r] = _mm512_inserti32x4(_mm512_inserti32x4(x[r], row(r + 8), 2), row(r + 12), 3);
    }
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpacklo_epi32(x[2], x[3]);
    const __m512i c = _mm512_unpackhi_epi32(x[0], x[1]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    out[0] = _mm512_unpacklo_epi64(a, b);
    out[1] = _mm512_unpackhi_epi64(a, b);
    out[2] = _mm512_unpacklo_epi64(c, d);
    out[3] = _mm512_unpackhi_epi64(c, d);
}

// Transposes 16 rows of 16-bit elements and widens them to float32: out[i · out_stride + r] is
// element i of row r. Rows ≥ `rows` are zero.
inline void widen_columns(const uint16_t* in, int64_t stride, int rows, int64_t columns,
                          Format format, float* out, int64_t out_stride) {
    for (int64_t first = 0; first < columns; first += 8) {
        __m512i pairs[4];
        if (rows >= 16) {
            transpose_pairs(in + first, stride, 16, columns - first, pairs);
        } else {
            transpose_pairs(in + first, stride, rows, columns - first, pairs);
        }
        for (int64_t i = 0; i < 8 && first + i < columns; i++) {
            const __m512i pair = i % 2 == 0 ? pairs[i / 2] : _mm512_srli_epi32(pairs[i / 2], 16);
            _mm512_storeu_ps(out + (first + i) * out_stride,
                             widen(_mm512_cvtepi32_epi16(pair), format));
        }
    }
}

}  // namespace

}  // namespace tiny_llm_ext
