// What AVX-512 kernels share: 16-bit formats, and a transposition in registers.
//
// Only for files that are compiled for AVX-512; see common/half.h for what they may include.
#pragma once

#include <immintrin.h>

#include "common/half.h"

namespace tiny_llm_ext {

namespace {

// 16 numbers as float32.
inline __m512 widen(__m256i x, Format format) {
    return format == Format::float16
               ? _mm512_cvtph_ps(x)
               : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

// Turns 16 float16 numbers, as float32, into two bfloat16 numbers each: 11 significant bits are 8
// and 3, and nothing is rounded.
inline void split(__m512 x, __m256i* high, __m256i* low) {
    *high = (__m256i)_mm512_cvtneps_pbh(x);
    *low = (__m256i)_mm512_cvtneps_pbh(_mm512_sub_ps(x, widen(*high, Format::bfloat16)));
}

// Rounds the first `count` lanes to the format and stores them; any number of 16 or more means all.
inline void store_halves(uint16_t* out, __m512 x, int64_t count, Format format) {
    const __mmask16 mask = static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << count) - 1);
    const __m256i halves = format == Format::float16
                               ? _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                               : (__m256i)_mm512_cvtneps_pbh(x);
    _mm256_mask_storeu_epi16(out, mask, halves);
}

// 16×16 words: out[c] holds word c of the 16 rows. Rows at or beyond `rows`, and words at or beyond
// `columns`, are zero.
inline void transpose(const uint32_t* in, int64_t stride, int rows, int columns, __m512i* out) {
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

// 16-bit numbers of 16 rows, as float32 by column: out[i · out_stride …] holds number i of each
// row. Rows at or beyond `rows` are zero.
inline void widen_columns(const uint16_t* in, int64_t stride, int rows, int64_t columns,
                          Format format, float* out, int64_t out_stride) {
    alignas(64) uint32_t block[16][16];
    __m512i column[16];
    for (int64_t first = 0; first < columns; first += 16) {
        const int64_t count = columns - first < 16 ? columns - first : 16;
        const __mmask16 mask = static_cast<__mmask16>((1u << count) - 1);
        for (int i = 0; i < 16; i++) {
            const __m256i row = i < rows ? _mm256_maskz_loadu_epi16(mask, in + i * stride + first)
                                         : _mm256_setzero_si256();
            _mm512_store_ps(block[i], widen(row, format));
        }
        transpose(block[0], 16, 16, 16, column);
        for (int64_t i = 0; i < count; i++) {
            _mm512_storeu_si512(out + (first + i) * out_stride, column[i]);
        }
    }
}

}  // namespace

}  // namespace tiny_llm_ext
