// 64 outputs of the AVX-512 kernel: their words of b, their scales and biases, and the way out.
#pragma once

#include "src/quantized_matmul/quantized_matmul_avx512_layout.h"

namespace tiny_llm_ext {

namespace {

// The state of one call on one panel group: 64 outputs from `first`.
struct Panel {
    const QuantizedMatmulJob* job;
    Layout layout;
    const uint32_t* pairs;         // prepared activations, M × row_pairs
    const float* sums;             // M × groups
    int64_t first;                 // output
    int outputs;                   // 64, or fewer at the end
    __m512i tables[2];             // of even and of odd look-ups
    __m512i words[BLOCK][PANELS];  // a transposed block of b
    const uint32_t* ahead;         // the block after the next
    __m512* scales;                // groups × PANELS
    __m512* biases;                // groups × PANELS
};

// Where the block after the next one begins. Its 64 rows are 64 places in memory, more than a
// processor follows by itself, so the direct path asks for its cache lines one by one as it
// computes: in one burst they would keep everything else waiting, and one block ahead is too late.
inline const uint32_t* block_ahead(const Panel& panel, int64_t first_word) {
    const int64_t stride = panel.layout.words;
    const int64_t ahead = first_word + 2 * BLOCK;
    return ahead < stride
               ? panel.job->b + panel.first * stride + ahead
               : panel.job->b + (panel.first + PANELS * LANES) * stride + (ahead - stride);
}

void load_block(Panel& panel, int64_t first_word, int count) {
    const int64_t stride = panel.layout.words;
    panel.ahead = block_ahead(panel, first_word);
    for (int c = 0; c < PANELS; c++) {
        const int rows = panel.outputs - c * LANES;
        const uint32_t* in = panel.job->b + (panel.first + c * LANES) * stride + first_word;
        for (int w = 0; w < count; w += 16) {
            __m512i column[16];
            const int columns = count - w < 16 ? count - w : 16;
            transpose(in + w, stride, rows < 0 ? 0 : rows > 16 ? 16 : rows, columns, column);
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) {
                panel.words[w + i][c] = column[i];
            }
        }
    }
}

// O × groups of 16-bit numbers -> groups × PANELS vectors of float32.
void load_by_group(const Panel& panel, const uint16_t* in, __m512* out) {
    const int64_t groups = panel.layout.groups;
    const char* next = (const char*)(in + (panel.first + PANELS * LANES) * groups);
    for (int64_t i = 0; i < PANELS * LANES * groups * 2; i += 64) {
        _mm_prefetch(next + i, _MM_HINT_T0);
    }
    alignas(64) uint32_t rows[LANES][LANES];
    for (int64_t g = 0; g < groups; g += LANES) {
        const int count = groups - g < LANES ? static_cast<int>(groups - g) : LANES;
        const __mmask16 mask = static_cast<__mmask16>((1u << count) - 1);
        for (int c = 0; c < PANELS; c++) {
            for (int i = 0; i < LANES; i++) {
                const int64_t o = c * LANES + i;
                const __m256i row =
                    o < panel.outputs
                        ? _mm256_maskz_loadu_epi16(mask, in + (panel.first + o) * groups + g)
                        : _mm256_setzero_si256();
                _mm512_store_ps(rows[i], widen(row, panel.job->scale_format));
            }
            __m512i column[16];
            transpose(rows[0], LANES, LANES, LANES, column);
            for (int i = 0; i < count; i++) {
                out[(g + i) * PANELS + c] = _mm512_castsi512_ps(column[i]);
            }
        }
    }
}

void store(const Panel& panel, int64_t row, const __m512* totals) {
    uint16_t* out = panel.job->out + row * panel.job->O + panel.first;
    for (int c = 0; c < PANELS; c++) {
        const int count = panel.outputs - c * LANES;
        if (count <= 0) {
            return;
        }
        const __mmask16 mask = static_cast<__mmask16>(count >= LANES ? 0xffff : (1u << count) - 1);
        const __m256i value =
            panel.job->format == Format::float16
                ? _mm512_cvtps_ph(totals[c], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                : (__m256i)_mm512_cvtneps_pbh(totals[c]);
        _mm256_mask_storeu_epi16(out + c * LANES, mask, value);
    }
}

}  // namespace

}  // namespace tiny_llm_ext
