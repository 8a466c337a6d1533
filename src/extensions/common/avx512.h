// AVX-512 helpers: 16-bit formats.
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

}  // namespace

}  // namespace tiny_llm_ext
