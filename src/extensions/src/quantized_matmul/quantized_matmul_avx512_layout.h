// How the AVX-512 kernel lays out activations, and how it turns words of b into vectors of bfloat16
// weights: steps 1 to 3 of quantized_matmul_avx512.cpp.
#pragma once

#include <immintrin.h>

#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext {

namespace {

constexpr int LANES = 16;  // outputs in a vector
constexpr int PANELS = 4;  // vectors of outputs in flight
constexpr int BLOCK = 32;  // words of b that are transposed at once; at least a group's
constexpr int PAIRS = 4;   // look-ups a word

struct Layout {
    int64_t words;  // of b in a row
    int64_t groups;
    int words_per_group;
    int planes;           // 1 for bfloat16 activations, 2 for float16
    int64_t row_pairs;    // 32-bit pairs of a prepared row, all planes
    int64_t sums_offset;  // in floats from the start of scratch
};

Layout layout_of(const QuantizedMatmulJob& job) {
    Layout layout;
    layout.words = job.I * job.bits / 32;
    layout.groups = job.I / job.group_size;
    layout.words_per_group = job.group_size * job.bits / 32;
    layout.planes = job.format == Format::float16 ? 2 : 1;
    layout.row_pairs = layout.words * PAIRS * layout.planes;
    layout.sums_offset = job.M * layout.row_pairs;
    return layout;
}

inline __m512 widen(__m256i x, Format format) {
    return format == Format::float16
               ? _mm512_cvtph_ps(x)
               : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

inline uint16_t round_to_bfloat16(float x) {
    return static_cast<uint16_t>(_mm_extract_epi16((__m128i)_mm_cvtneps_pbh(_mm_set_ss(x)), 0));
}

// Which activations of a word's meet in look-up p. A word unpacks by 4-bit steps of its two halves.
//   4 bits: numbers p and 4 + p.   8 bits: bytes p/2 and 2 + p/2, low halves first.
inline int partner(int p, int half, int bits) {
    return bits == 4 ? p + 4 * half : p / 2 + 2 * half;
}

// The bfloat16 numbers behind 32 indices, of which the lowest four bits count.
inline void make_tables(int bits, __m512i* tables) {
    alignas(64) uint16_t low[32], high[32];
    for (int i = 0; i < 32; i++) {
        low[i] = round_to_bfloat16(static_cast<float>(i & 15));
        high[i] = round_to_bfloat16(static_cast<float>(16 * (i & 15)));
    }
    tables[0] = _mm512_load_si512(low);
    tables[1] = _mm512_load_si512(bits == 8 ? high : low);
}

// Look-up p of a vector of words: 32 weights.
inline __m512i unpack(__m512i words, int p, __m512i table) {
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4 * p), table);
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

int64_t scratch_bytes(const QuantizedMatmulJob& job) {
    const Layout layout = layout_of(job);
    return 4 * (layout.sums_offset + job.M * layout.groups);
}

void prepare(const QuantizedMatmulJob& job, void* scratch, int64_t first_row, int64_t last_row) {
    const Layout layout = layout_of(job);
    const int per_word = 32 / job.bits;
    for (int64_t m = first_row; m < last_row; m++) {
        const uint16_t* a = job.a + m * job.I;
        uint16_t* pairs = static_cast<uint16_t*>(scratch) + m * layout.row_pairs * 2;
        for (int64_t word = 0; word < layout.words; word++) {
            for (int p = 0; p < PAIRS; p++) {
                for (int half = 0; half < 2; half++) {
                    const uint16_t x = a[word * per_word + partner(p, half, job.bits)];
                    uint16_t* pair = pairs + (word * PAIRS + p) * layout.planes * 2 + half;
                    if (layout.planes == 1) {
                        pair[0] = x;
                    } else {
                        // 11 significant bits are 8 and 3: two bfloat16 numbers, no rounding.
                        const float value = _cvtsh_ss(x);
                        pair[0] = round_to_bfloat16(value);
                        pair[2] = round_to_bfloat16(value - bfloat16_to_float(pair[0]));
                    }
                }
            }
        }
        float* sums = static_cast<float*>(scratch) + layout.sums_offset + m * layout.groups;
        for (int64_t g = 0; g < layout.groups; g++) {
            __m512 sum = _mm512_setzero_ps();
            for (int i = 0; i < job.group_size; i += LANES) {
                const __m256i x = _mm256_loadu_si256((const __m256i*)(a + g * job.group_size + i));
                sum = _mm512_add_ps(sum, widen(x, job.format));
            }
            sums[g] = _mm512_reduce_add_ps(sum);
        }
    }
}

}  // namespace

}  // namespace tiny_llm_ext
